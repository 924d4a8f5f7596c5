// A config of a fused operator from text, so that one that no list has can be timed: in the form in
// which tables print it, "tile=128x256x64 scatter=copy_engine channels=2 stagger=2". What the text
// does not name is as the operator's default has it, made to fit, on as many SMs as there are; what
// it names and the shape does not give is refused.
#pragma once

#include <string>

#include "bench/gpu/overlap/overlap_shapes.h"

namespace stretto::bench {

// UserError for a word that is no field of a config of the shape's kind, or no value of it. The
// candidate says itself why the operator refuses a config.
OverlapCandidate parse_overlap_config(const OverlapShape& shape, int num_sms,
                                      const std::string& text);

}  // namespace stretto::bench
