# The three kinds of target a room has: its library, its tests, its processor-specific sources.
include(GoogleTest OPTIONAL)

# GoogleTest and nlohmann-json are not instrumented, so the MemorySanitizer build leaves out what needs them.
if(QUIRE_SANITIZE MATCHES "memory")
  set(QUIRE_UNINSTRUMENTED_LIBRARIES OFF)
else()
  set(QUIRE_UNINSTRUMENTED_LIBRARIES ON)
  find_package(GTest REQUIRED)
endif()

function(quire_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_library(quire_${name} STATIC ${ARG_SOURCES})
  target_include_directories(quire_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_link_libraries(quire_${name} PUBLIC Threads::Threads)
  quire_compile_together(quire_${name})
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(quire_${name} PUBLIC quire_${room})
  endforeach()
endfunction()

# quire_on_gpu(attn SOURCES attend_cuda.cu ABSENT cuda_absent.cc): a room's implementations for GPUs, or in a build without
# CUDA what stands in for them and refuses.
function(quire_on_gpu room)
  cmake_parse_arguments(ARG "" "" "SOURCES;ABSENT" ${ARGN})
  if(QUIRE_CUDA)
    target_sources(quire_${room} PRIVATE ${ARG_SOURCES})
    set_source_files_properties(${ARG_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    target_link_libraries(quire_${room} PUBLIC CUDA::cudart_static)
  else()
    target_sources(quire_${room} PRIVATE ${ARG_ABSENT})
  endif()
endfunction()

# Kernels and what runs between them.
function(quire_hot)
  foreach(room IN LISTS ARGN)
    target_compile_options(quire_${room} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endforeach()
endfunction()

# What runs once a request, or less often: compiled in three quarters of the time.
function(quire_cold)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endforeach()
endfunction()

# Sources of a target eight at a time, so that what they all include is read once. Where two that come together give the
# same file-local name, the compiler says so, and one has to find a better name. In asan and tsan each source is compiled
# by itself, so none can come to need a header that it does not name.
function(quire_compile_together target)
  if(NOT QUIRE_SANITIZE MATCHES "^(address|thread)")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # The compiler takes the joined source for a header, whose types must not have file-local parts.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# What is tested is optimised; the tests themselves need not be, and compile twice as fast.
function(quire_compile_as_test target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  target_compile_definitions(${target} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE GTest::gtest)
endfunction()

# One set of precompiled headers for all tests.
if(QUIRE_UNINSTRUMENTED_LIBRARIES AND CMAKE_BUILD_TYPE STREQUAL "Release")
  find_package(nlohmann_json REQUIRED)
  file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cc "")
  add_library(quire_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
  quire_compile_as_test(quire_test_headers)
  target_precompile_headers(quire_test_headers PRIVATE <gtest/gtest.h> <nlohmann/json.hpp>)
endif()

# quire_test(page_pool_test ROOM kv): a room's tests are one program, kv_tests, because what each brings into the compiler
# (GoogleTest's and JSON's templates) then comes once for several; each TEST is an entry of CTest. ALONE, or with SOURCES of
# its own: a program for itself.
function(quire_test name)
  if(NOT QUIRE_UNINSTRUMENTED_LIBRARIES)
    return()
  endif()
  cmake_parse_arguments(ARG "ALONE" "ROOM" "SOURCES;USES" ${ARGN})
  set(program ${ARG_ROOM}_tests)
  if(ARG_ALONE OR ARG_SOURCES)
    set(program ${name})
  endif()
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES ${name}.cc)
  endif()
  if(NOT TARGET ${program})
    quire_test_program(${program} ${ARG_ROOM})
  endif()
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_USES})
endfunction()

function(quire_test_program program room)
  add_executable(${program})
  quire_compile_as_test(${program})
  quire_compile_together(${program})
  target_link_libraries(${program} PRIVATE quire_${room} GTest::gtest_main)
  if(TARGET quire_test_headers)
    target_precompile_headers(${program} REUSE_FROM quire_test_headers)
  endif()
  gtest_discover_tests(${program} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 300)
endfunction()

# Kernels read no untrusted bytes, and instrumented ones take minutes to compile: fuzzing has them plain.
if(QUIRE_SANITIZE MATCHES "fuzzer")
  set(QUIRE_KERNEL_OPTIONS ";-fno-sanitize=all")
endif()

# Sources for one instruction set. They hold only code with internal linkage behind one entry point, so
# that nothing compiled with these flags can be picked by the linker for use on a lesser machine.
function(quire_isa_flags source)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(${source} PROPERTIES
      COMPILE_OPTIONS "${ARGN};$<$<CONFIG:Release>:-O3>${QUIRE_KERNEL_OPTIONS}")
  endif()
endfunction()

# quire_isa_variant(ops sample_scan.cc avx2 -mavx2): one source for several instruction sets, the same rule being kept: the
# one entry point is in the namespace QUIRE_ISA.
function(quire_isa_variant room source isa)
  get_filename_component(stem ${source} NAME_WE)
  set(variant quire_${stem}_${isa})
  add_library(${variant} OBJECT ${source})
  target_include_directories(${variant} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${variant} PRIVATE QUIRE_ISA=${isa})
  target_compile_options(${variant} PRIVATE "${ARGN};$<$<CONFIG:Release>:-O3>${QUIRE_KERNEL_OPTIONS}")
  target_sources(quire_${room} PRIVATE $<TARGET_OBJECTS:${variant}>)
endfunction()
