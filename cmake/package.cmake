# `cmake --install BUILD --prefix P`: the command, the libraries and the public headers, found by
# find_package(stretto). stretto::stretto is all of them; each folder's library has its own name, stretto::lang.
include(CMakePackageConfigHelpers)

get_property(installed GLOBAL PROPERTY STRETTO_INSTALLED)
add_library(stretto_all INTERFACE)
target_link_libraries(stretto_all INTERFACE ${installed})
set_target_properties(stretto_all PROPERTIES EXPORT_NAME stretto)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
install(TARGETS stretto_all ${installed} EXPORT stretto-targets)
install(TARGETS stretto)
install(EXPORT stretto-targets NAMESPACE stretto:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/stretto-config.cmake.in
                              ${CMAKE_BINARY_DIR}/stretto-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/stretto-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/stretto-config.cmake ${CMAKE_BINARY_DIR}/stretto-config-version.cmake
        DESTINATION ${package_dir})
install(CODE "set(STRETTO_SOURCE_DIR \"${CMAKE_SOURCE_DIR}\")
set(STRETTO_INCLUDE_DIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
include(\"${CMAKE_SOURCE_DIR}/cmake/install_headers.cmake\")")
