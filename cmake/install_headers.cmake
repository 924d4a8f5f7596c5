# Copies the public headers and whatever they include to STRETTO_INCLUDE_DIR; run by the installation.
# Public is what a program needs that writes tile programs, proves, predicts, compiles or launches them, or that runs the
# shipped operators, step plans and the engine.
cmake_policy(VERSION 3.25)
set(pending
    stretto/compiler.h
    stretto/base/env.h
    stretto/base/errors.h
    stretto/base/host_phases.h
    stretto/base/recently_used.h
    stretto/base/slow_notice.h
    stretto/base/statistics.h
    stretto/lang/column_dot.h
    stretto/lang/program_builder.h
    stretto/lang/program_file.h
    stretto/ir/parser.h
    stretto/ir/printer.h
    stretto/passes/pipeline.h
    stretto/proof/print_instances.h
    stretto/proof/proof_cache.h
    stretto/proof/prove.h
    stretto/predict/prediction.h
    stretto/step/check.h
    stretto/step/cpu_runner.h
    stretto/step/gpu_runner.h
    stretto/step/plan_builder.h
    stretto/step/predict.h
    stretto/step/text.h
    stretto/runtime/cuda/driver_phases.h
    stretto/runtime/recorder.h
    stretto/runtime/world.h
    stretto/executor/executor.h
    stretto/gpu/gpu_world.h
    stretto/stretto.h
    stretto/ops/catalog/catalog.h
    stretto/ops/choose/calibrated_machine.h
    stretto/ops/choose/choose.h
    stretto/ops/choose/configs.h
    stretto/ops/choose/fastest.h
    stretto/ops/measure/ranks_time.h
    stretto/model/transformer/step_programs.h
    stretto/engine/generate.h)
foreach(operator ag_gemm attention collectives embedding gemm gemm_ag gemm_ar gemm_rs norm)
  list(APPEND pending stretto/ops/${operator}/${operator}.h)
endforeach()
foreach(form decode_attention flash_decode packed_attention paged_decode paged_write
        sequence_attention)
  list(APPEND pending stretto/ops/attention/${form}.h)
endforeach()
list(APPEND pending stretto/ops/ag_gemm/ag_columns_gemm.h stretto/ops/collectives/uneven.h
     stretto/ops/gemm/quantize_fp8.h stretto/ops/ulysses/ulysses.h)
list(APPEND pending stretto/ops/moe/route.h stretto/ops/moe/grouped_gemm.h stretto/ops/moe/combine.h
     stretto/ops/moe/ep_send.h stretto/ops/moe/ep_place.h stretto/ops/moe/ep_return.h
     stretto/ops/moe/ag_grouped_gemm.h stretto/ops/moe/grouped_gemm_rs.h
     stretto/ops/moe/moe_layer.h stretto/ops/moe/ep_moe_layer.h stretto/ops/moe/expert_tables.h
     stretto/ops/moe/sorted_gemm_rs.h)

set(public "")
while(pending)
  list(POP_FRONT pending header)
  list(APPEND public ${header})
  file(STRINGS ${STRETTO_SOURCE_DIR}/${header} includes REGEX "^#include \"stretto/")
  foreach(line ${includes})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included ${line})
    if(NOT included IN_LIST public AND NOT included IN_LIST pending)
      list(APPEND pending ${included})
    endif()
  endforeach()
endwhile()
foreach(header ${public})
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${STRETTO_SOURCE_DIR}/${header} DESTINATION ${STRETTO_INCLUDE_DIR}/${folder})
endforeach()
