// The way of a tile program to what runs it, whole. Whoever uses stretto from C++ includes this,
// and a header of lang/ or ops/ for the program:
//   Lowered    lower(program)                         the passes; verified
//   Proved     prove(lowered, options)                or waive_proof(lowered, why): no third way
//   Prediction predict::predict(lowered, machine)     what it would take, before it runs
//   GpuCode    generate(lowered, options)             for a GpuTarget; needs no GPU
//   Executable load(proved, rank)                     on a rank of CPUs
//              load(proved, gpu_world, code)          on all GPUs of a process
//   Launch     executable->prepare(args)              where the tensors are, encoded once
//              launch->run(extents, stream)           what the program computes
// A launch has only sizes that were proved, and its GPU as many SMs as were proved; anything else
// is a UserError. What is not proved completely is NotComplete, unless ProveOptions::waiver says
// why it runs. Tests alone leave a proof out. docs/internals/flow.md has the picture.
#pragma once

#include "stretto/compiler.h"            // lower, prove, waive_proof
#include "stretto/gpu/gpu_code.h"        // generate
#include "stretto/launch/executable.h"   // load, prepare, run
#include "stretto/predict/prediction.h"  // predict
