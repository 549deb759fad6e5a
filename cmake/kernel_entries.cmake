# One generated source for each row of a table of Hopper kernels, so that they compile side by side.
# Without FA3_KERNELS, one for the whole table, whose entries have no kernel.

# fa3_kernel_entries(<result> <folder> <pass> <table> <entry> <kind>...)
# Into list <result>, the sources in <folder>: they include <entry>.cuh and instantiate <pass>Kernel for
# each instance of <table> and each kind, the template arguments after the row. <table> and <entry> lie
# in src/engine/hopper/instances.
function(fa3_kernel_entries result folder pass table entry)
  set(table ${PROJECT_SOURCE_DIR}/src/engine/hopper/instances/${table})
  set(instance KernelInstance)
  if(pass STREQUAL "Backward")
    set(instance BackwardInstance)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} rows REGEX "^    ${instance}{")
  list(LENGTH rows num_rows)
  math(EXPR last_row "${num_rows} - 1")
  set(header engine/hopper/instances/${entry}.cuh)
  if(NOT FA3_KERNELS)
    set(header ${PROJECT_SOURCE_DIR}/tests/cpp/engine/hopper/no_kernels.h)
  endif()
  set(sources)
  set(instances)
  foreach(row RANGE ${last_row})
    foreach(kind ${ARGN})
      string(APPEND instances "template ${pass}Kernel ${entry}<${row}, ${kind}>();\n")
    endforeach()
    if(FA3_KERNELS)
      set(source ${folder}/${entry}_${row}.cu)
    elseif(row EQUAL last_row)
      set(source ${folder}/no_${entry}.cu)
    else()
      continue()
    endif()
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include "@header@"
namespace fa3::hopper {
@instances@}  // namespace fa3::hopper
]])
    list(APPEND sources ${source})
    set(instances)
  endforeach()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# Into list <result>, the kinds of kernels of these elements: each in every Variant of forward_config.h.
function(fa3_kernel_kinds result)
  set(kinds)
  foreach(element ${ARGN})
    foreach(variant kDense kGeneral kCapped)
      list(APPEND kinds "Element::${element}, Variant::${variant}")
    endforeach()
  endforeach()
  set(${result} ${kinds} PARENT_SCOPE)
endfunction()
