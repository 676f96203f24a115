# Build rules shared by every target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(h3s_flags INTERFACE)
# Contraction is a choice made in the source (std::fma), never by the compiler: the definitions and the vector code
# must round alike.
set(h3s_cxx_flags -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi -Wno-missing-field-initializers -ffp-contract=off -fno-fast-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # AVX2, FMA, F16C, BMI2: every x86 processor of the last decade; wider vectors are chosen at run time.
  list(APPEND h3s_cxx_flags -march=x86-64-v3)
endif()
# The host side of a CUDA file launches kernels; -Wpedantic would complain of the code the CUDA compiler generates.
target_compile_options(h3s_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${h3s_cxx_flags}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off>")
if(H3S_SANITIZE)
  target_compile_options(h3s_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${H3S_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(h3s_flags INTERFACE -fsanitize=${H3S_SANITIZE})
endif()
target_include_directories(h3s_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)

# h3s_library(NAME SOURCES ... DEPS ...): one folder, one target; DEPS is the layer table of docs/architecture.md.
function(h3s_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(h3s_${name} STATIC ${arg_SOURCES})
  target_link_libraries(h3s_${name} PUBLIC h3s_flags ${arg_DEPS})
endfunction()

# h3s_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT s]): one GoogleTest program, one ctest entry per case.
function(h3s_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
    if(H3S_SANITIZE)  # ten times slower at the worst
      set(arg_TIMEOUT 3000)
    endif()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE h3s_flags ${arg_DEPS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
