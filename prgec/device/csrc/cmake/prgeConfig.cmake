# find_package(prge CONFIG): defines prge::prge, which links ExecuTorch, found as the driver itself found it.
include(${CMAKE_CURRENT_LIST_DIR}/executorch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/prgeTargets.cmake)
