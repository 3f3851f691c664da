# Finds ExecuTorch in its Python wheel, or on CMAKE_PREFIX_PATH; sets PRGE_EXECUTORCH to the targets to link.
find_package(executorch 1.5 CONFIG QUIET)
if(NOT executorch_FOUND AND NOT CMAKE_CROSSCOMPILING)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "import importlib.util as u; print(*u.find_spec('executorch').submodule_search_locations)"
    OUTPUT_VARIABLE wheel
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  )
  find_package(executorch 1.5 CONFIG QUIET PATHS "${wheel}")
endif()
if(NOT executorch_FOUND AND CMAKE_CROSSCOMPILING AND NOT ANDROID)
  message(FATAL_ERROR "ExecuTorch's aarch64 wheel is missing: set EXECUTORCH_ARM64 to the folder it was unpacked to "
                      "(README.md says how)."
  )
endif()
if(NOT executorch_FOUND)
  message(FATAL_ERROR "ExecuTorch is missing: `pip install executorch==1.5.1` in the Python environment in use, or "
                      "point CMAKE_PREFIX_PATH at an installed build (README.md says how for Android)."
  )
endif()

# The wheel's names, then those of an installed build.
set(wanted executorch::runtime executorch::kernels_optimized executorch::kernels_quantized executorch::backend_xnnpack
           executorch::threadpool
)
if(NOT TARGET executorch::runtime)
  set(wanted executorch extension_module_static extension_tensor optimized_native_cpu_ops_lib quantized_ops_lib
             xnnpack_backend qnn_executorch_backend extension_threadpool
  )
endif()
set(PRGE_EXECUTORCH)
foreach(name IN LISTS wanted)
  if(TARGET ${name})
    list(APPEND PRGE_EXECUTORCH ${name})
  endif()
endforeach()
