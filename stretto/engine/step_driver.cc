#include "stretto/engine/step_driver.h"

#include <utility>

namespace stretto {

StepDriver::StepDriver(BatchModel& model, BatchLoop& loop, bool ahead, OnOrder on_order)
    : model_(model), loop_(loop), ahead_(ahead), on_order_(std::move(on_order)) {}

void StepDriver::wait_for_turn() {
  if (under_way_) model_.wait_for_layers();
}

bool StepDriver::round() {
  auto order = std::make_shared<BatchOrder>(loop_.decide());
  const bool begins = !order->parts.empty(), beside = model_.runs_beside_host();
  bool completes = under_way_;
  // What runs beside the host has its next step before anybody hears of the last one.
  if (begins && beside) begin(order);
  if (under_way_) complete();
  if (begins && !beside) {
    const std::span<const std::int32_t> chosen = model_.chosen();
    order->chosen.assign(chosen.begin(), chosen.end());
    loop_.tell();
    begin(order);
  }
  if (begins) {
    under_way_ = model_.choose(pieces_, loop_) && ahead_;
    loop_.tell();
    if (!under_way_) {
      complete();
      completes = true;
    }
  }
  if (!begins || loop_.is_idle()) loop_.tell();
  if (loop_.is_idle()) model_.rest();
  return completes;
}

void StepDriver::begin(Order order) {
  order_ = std::move(order);
  if (on_order_) on_order_(order_);
  pieces_ = order_->pieces();
  model_.begin(pieces_);
}

void StepDriver::complete() {
  under_way_ = false;
  model_.finish(loop_);
  loop_.complete();
}

}  // namespace stretto
