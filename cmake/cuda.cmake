# CUDA where it is wanted: afterwards QUIRE_CUDA is ON or OFF, and if ON the language CUDA works.
find_program(QUIRE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(QUIRE_NVCC)
if(QUIRE_CUDA STREQUAL "AUTO")
  # A compiler that is too old, or that does not take this machine's C++ compiler, is none.
  set(QUIRE_CUDA OFF)
  if(QUIRE_NVCC)
    execute_process(COMMAND ${QUIRE_NVCC} --version OUTPUT_VARIABLE said ERROR_QUIET)
    if(said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.5)
      include(CheckLanguage)
      set(ENV{CUDACXX} ${QUIRE_NVCC})
      check_language(CUDA)
      if(CMAKE_CUDA_COMPILER)
        set(QUIRE_CUDA ON)
      endif()
    endif()
  endif()
endif()
if(NOT QUIRE_CUDA)
  return()
endif()
if(QUIRE_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${QUIRE_NVCC})
endif()

# Machine code for Hopper, and code of compute capability 8.0 that the driver of any later GPU makes its own of.
set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90a-real)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc can
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
# Contraction is off in the host's half alone: device code keeps the fused products that it is measured with.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-ffp-contract=off>")
