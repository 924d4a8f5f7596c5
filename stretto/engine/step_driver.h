// Has a device make the steps that a BatchLoop decides: each after the one before, or ahead of it.
// Ahead, a step is decided and given to the device while the one before is under way, whose tokens
// go from where they are chosen into the next step's rows (BatchPiece::source). Before:
// batch_loop.h.
//
// A step in which rows are asked for that the host looks at (Want::kLogits) is waited for before
// the next one is decided: what it leaves is gone once another begins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "stretto/engine/batch_loop.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {

class StepDriver {
 public:
  using Order = std::shared_ptr<const BatchOrder>;
  // Before a step begins here: the ranks that follow are told.
  using OnOrder = std::function<void(const Order&)>;

  // `ahead`: the model is made for it (BatchOptions::ahead). All outlive this.
  StepDriver(BatchModel& model, BatchLoop& loop, bool ahead, OnOrder on_order = {});

  // Until it is time to decide a step: ahead, when only the choice of the one before is left to do,
  // so that who has come by then is in it, and the device has work while it is decided.
  void wait_for_turn();
  // Decides a step and begins it; completes that one, or ahead the one before; requests hear of
  // what is new. Where all have ended nothing is left that they have not heard. Whether a step was
  // completed.
  bool round();

 private:
  void begin(Order order);
  void complete();

  BatchModel& model_;
  BatchLoop& loop_;
  const bool ahead_;
  OnOrder on_order_;
  Order order_;  // of the step that began last
  std::vector<BatchPiece> pieces_;
  bool under_way_ = false;
};

}  // namespace stretto
