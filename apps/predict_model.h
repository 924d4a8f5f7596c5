// `stretto predict --model`: what a step of a model would take on GPUs.
#pragma once

#include <string>

#include "stretto/model/transformer/batch_prediction.h"

namespace CLI {
class App;
}

namespace stretto {

struct PredictModelOptions {
  std::string model, plan_file, kv_dtype = "auto", weights = "auto", fused_experts = "auto";
  BatchQuestion question;
};

void add_predict_model_options(CLI::App* command, PredictModelOptions& options);

// `dtype`: "auto" is what the model was trained in. Prints lines, or one JSON object.
void predict_model(PredictModelOptions options, const std::string& dtype,
                   const predict::Machine& machine, bool json);

}  // namespace stretto
