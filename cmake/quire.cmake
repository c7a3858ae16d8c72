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
  target_include_directories(quire_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quire_${name} PUBLIC Threads::Threads)
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(quire_${name} PUBLIC quire_${room})
  endforeach()
endfunction()

# quire_test(page_pool_test ROOM kv): one executable, one CTest entry for each TEST in it.
function(quire_test name)
  if(NOT QUIRE_UNINSTRUMENTED_LIBRARIES)
    return()
  endif()
  cmake_parse_arguments(ARG "" "ROOM" "SOURCES;USES" ${ARGN})
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES ${name}.cc)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # What is tested is optimised; the tests themselves need not be, and compile twice as fast.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-g0>)
  target_link_libraries(${name} PRIVATE quire_${ARG_ROOM} GTest::gtest GTest::gtest_main)
  foreach(library IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE ${library})
  endforeach()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 300)
endfunction()

# Kernels read no untrusted bytes, and instrumented ones take minutes to compile: fuzzing has them plain.
if(QUIRE_SANITIZE MATCHES "fuzzer")
  set(QUIRE_KERNEL_OPTIONS ";-fno-sanitize=all")
endif()

# Sources for one instruction set. They hold only code with internal linkage behind one entry point, so
# that nothing compiled with these flags can be picked by the linker for use on a lesser machine.
function(quire_isa_flags source)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN}${QUIRE_KERNEL_OPTIONS}")
  endif()
endfunction()
