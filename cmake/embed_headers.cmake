# fa3_embed_headers(ENGINE ROOTS... [GENERATED FILES...]): headers of an engine's kernels as text
# in the library, for kernels that are compiled at run time. GENERATED: those that the build writes.
function(fa3_embed_headers engine)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "" GENERATED)
  set(folder ${PROJECT_BINARY_DIR}/generated/engine/cuda/jit)
  set(source ${folder}/${engine}_headers.cpp)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/embed_headers.py
            ${source} ${engine}_headers ${of_UNPARSED_ARGUMENTS}
            -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/include
            -I ${PROJECT_BINARY_DIR}/generated
    DEPENDS ${PROJECT_SOURCE_DIR}/tools/embed_headers.py ${of_GENERATED}
    DEPFILE ${source}.d)
  add_custom_target(fa3_${engine}_headers DEPENDS ${source})
  add_dependencies(fa3_objects fa3_${engine}_headers)
  set_source_files_properties(${source} TARGET_DIRECTORY fa3_objects PROPERTIES GENERATED ON)
  target_sources(fa3_objects PRIVATE ${source})
endfunction()
