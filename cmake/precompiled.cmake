# Headers of the standard library and of other projects, read once per build instead of once per file. Every file still
# includes what it uses, and builds through a launcher such as ccache, which knows objects by their whole text, go without.

if(CMAKE_CXX_COMPILER_LAUNCHER OR STRETTO_LIBRARIES_ONLY)
  set(whole OFF)
else()
  set(whole ON)
endif()
option(STRETTO_PRECOMPILE "precompile the headers of other projects" ${whole})

# Files of a folder are compiled eight at a time, as one: a build from nothing takes less than half the time. So two files
# of a folder may not give one name to two things, not even in unnamed namespaces. A launcher compiles each file alone,
# which is quicker where few of them change.
option(STRETTO_UNITY "compile several files of a folder as one" ${whole})
set(CMAKE_UNITY_BUILD ${STRETTO_UNITY})
if(STRETTO_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage)  # a file that is included is no header
endif()

# stretto_compiled_alone(TARGET): its files give the same names to their own things.
function(stretto_compiled_alone target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()

# stretto_precompiled_set(NAME HEADERS header... LINKS library...): one set, for targets with the same flags.
function(stretto_precompiled_set name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINKS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/${name}.cc CONTENT "")
  add_library(precompiled_${name} OBJECT ${CMAKE_BINARY_DIR}/precompiled/${name}.cc)
  target_link_libraries(precompiled_${name} PRIVATE fmt::fmt spdlog::spdlog ${ARG_LINKS})
  target_precompile_headers(precompiled_${name} PRIVATE ${ARG_HEADERS})
endfunction()

# stretto_precompiled(TARGET NAME): the target's files begin with that set.
function(stretto_precompiled target name)
  if(STRETTO_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM precompiled_${name})
  endif()
endfunction()

if(STRETTO_PRECOMPILE)
  set(usual <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits> <map>
    <memory> <mutex> <numeric> <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <utility>
    <vector> <fmt/format.h>)
  stretto_precompiled_set(libraries HEADERS ${usual})
  stretto_position_independent(precompiled_libraries)
  stretto_precompiled_set(tests HEADERS ${usual} <gtest/gtest.h> LINKS GTest::gtest)
  stretto_compiled_quickly(precompiled_tests)
  # Without CLI11, whose classes every file would emit that begins with them.
  stretto_precompiled_set(commands HEADERS ${usual} <nlohmann/json.hpp>
    LINKS nlohmann_json::nlohmann_json)
  stretto_compiled_quickly(precompiled_commands)
endif()
