# What comes with Debian's packages. Where one is missing the error names it; tools/packages.sh lists them all.

function(stretto_miss what package)
  message(FATAL_ERROR "${what} is missing: install the Debian package ${package}")
endfunction()

# stretto_need_package(NAME PACKAGE): find_package(NAME).
macro(stretto_need_package name package)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    stretto_miss(${name} ${package})
  endif()
endmacro()

# stretto_need_library(VARIABLE NAME PACKAGE) and stretto_need_header: find_library(VARIABLE NAME), find_path.
function(stretto_need_library variable name package)
  find_library(${variable} ${name})
  if(NOT ${variable})
    stretto_miss("the library ${name}" ${package})
  endif()
endfunction()

function(stretto_need_header variable name package)
  find_path(${variable} ${name})
  if(NOT ${variable})
    stretto_miss(${name} ${package})
  endif()
endfunction()
