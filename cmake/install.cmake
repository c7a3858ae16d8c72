# `cmake --install build/cpu --prefix PLACE`: the program with its draft heads, manual page and completions, and for programs in C++ the
# rooms up to attention as a package (`find_package(quire)`, then link quire::attn). What is installed is built with `quire`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/quire)

# The rooms. Their headers include each other as "attn/attention.h", so the folder above them is the one to search.
set(exported base kv attn)
foreach(room IN LISTS exported)
  set_target_properties(quire_${room} PROPERTIES EXPORT_NAME ${room})
  target_compile_features(quire_${room} INTERFACE cxx_std_20)
  install(TARGETS quire_${room} EXPORT quire INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY src/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire FILES_MATCHING PATTERN "*.h"
          PATTERN "testing" EXCLUDE)
endforeach()
install(EXPORT quire NAMESPACE quire:: FILE quireTargets.cmake DESTINATION ${package})
configure_package_config_file(cmake/quireConfig.cmake.in ${PROJECT_BINARY_DIR}/quireConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quireConfig.cmake ${PROJECT_BINARY_DIR}/quireConfigVersion.cmake DESTINATION ${package})

# The program prints its own page and completions.
if(TARGET quire)
  set(printed ${PROJECT_BINARY_DIR}/printed)
  function(quire_prints file)
    install(CODE "execute_process(COMMAND \"$<TARGET_FILE:quire>\" ${ARGN} OUTPUT_FILE \"${printed}/${file}\"
                                  COMMAND_ERROR_IS_FATAL ANY)")
  endfunction()
  install(TARGETS quire)
  install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/heads FILES_MATCHING PATTERN "*.safetensors")
  install(CODE "file(MAKE_DIRECTORY \"${printed}\")")
  quire_prints(quire.1 help --man)
  quire_prints(quire completion bash)
  quire_prints(_quire completion zsh)
  quire_prints(quire.fish completion fish)
  install(FILES ${printed}/quire.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${printed}/quire DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${printed}/_quire DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${printed}/quire.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
