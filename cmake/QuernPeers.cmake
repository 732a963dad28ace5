# The peers of `quern bench`: programs on other libraries, built when their headers are there. The library links none of them.
# They lie beside the program in peers/, and are installed to libexec/quern/peers.
include(CheckCSourceCompiles)
set(peers_dir ${PROJECT_BINARY_DIR}/peers)
set(peers_install ${CMAKE_INSTALL_LIBEXECDIR}/quern/peers)

# quern_peer(<name> <library> <probe>): peers/peer_<name> if the probe compiles and the library is found.
function(quern_peer name library probe)
  find_library(QUERN_PEER_${name} ${library})
  mark_as_advanced(QUERN_PEER_${name})
  set(CMAKE_REQUIRED_QUIET ON)
  check_c_source_compiles("${probe}" QUERN_PEER_${name}_HEADERS)
  if(NOT QUERN_PEER_${name} OR NOT QUERN_PEER_${name}_HEADERS)
    message(STATUS "peer ${name}: not installed, quern bench goes without it")
    unset(QUERN_PEER_${name}_HEADERS CACHE) # look again next time
    return()
  endif()
  add_executable(peer_${name} bench/peers/${name}.c)
  set_target_properties(peer_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${peers_dir})
  target_compile_options(peer_${name} PRIVATE -O2)
  target_link_libraries(peer_${name} PRIVATE ${QUERN_PEER_${name}} m)
  install(TARGETS peer_${name} DESTINATION ${peers_install})
endfunction()

if(NOT QUERN_SANITIZE)
  quern_peer(onednn dnnl "#include <oneapi/dnnl/dnnl.h>
    #if DNNL_VERSION_MAJOR != 2
    #error
    #endif
    int main(void) { return 0; }")
  quern_peer(openblas openblas "#include <cblas.h>
    int main(void) { return (int)(sizeof(blasint) - sizeof OPENBLAS_VERSION) == 0; }")
endif()

file(GLOB scripts CONFIGURE_DEPENDS bench/peers/*.py)
foreach(script ${scripts})
  cmake_path(GET script FILENAME name)
  configure_file(${script} ${peers_dir}/${name} COPYONLY)
endforeach()
install(FILES ${scripts} DESTINATION ${peers_install})
