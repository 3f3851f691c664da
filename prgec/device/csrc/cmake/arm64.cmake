# Toolchain of the preset `arm64`: Debian's cross compiler for 64-bit ARM Linux.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(PRGE_ARM64_COMPILER aarch64-linux-gnu-g++)
if(NOT PRGE_ARM64_COMPILER)
  message(FATAL_ERROR "aarch64-linux-gnu-g++ is missing. Hint: apt-get install g++-aarch64-linux-gnu")
endif()
set(CMAKE_CXX_COMPILER ${PRGE_ARM64_COMPILER})
# Runs what was built where a step of the build wants to.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
