// Weights of the layers' products as they are put together of a checkpoint's tensors: as they are,
// or as e4m3 with scales of blocks, copied with their scales or made here.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/model/checkpoint/config.h"
#include "stretto/model/transformer/matrix.h"

namespace stretto {

// One weight of a rank: `parts` matrices [rows, cols] under one another, as experts are, with
// blocks of their own. What no tensor is copied to stays zero.
class ProductMatrix {
 public:
  struct Size {
    std::int64_t parts = 1, rows = 0, cols = 0;
  };
  // `plain`: the dtype of weights that are kept as they are.
  ProductMatrix(const Checkpoint& checkpoint, const ModelConfig& config, DType plain,
                const Size& size);

  // Copies from the tensor `name` to a part; parts in order, the one before is complete. Scales go
  // along, so cuts of stored e4m3 begin and end where blocks begin.
  void add(std::int64_t part, const std::string& name, const Matrix::Cut& cut);

  struct Made {
    Matrix weight;  // [parts * rows, cols]
    Matrix scales;  // f32 [parts * ceil(rows/128), ceil(cols/128)], or empty
  };
  Made finish();

 private:
  void add_scales(std::int64_t part, const std::string& name, const Matrix::Cut& cut);
  void quantize_part();

  const Checkpoint& checkpoint_;
  ProductWeights kind_;
  Size size_;
  std::int64_t scale_rows_ = 0;  // a part's
  Made made_;
  Matrix part_;  // that is made e4m3 when it is complete: in the dtype of the tensors
  std::int64_t part_idx_ = 0;
};

}  // namespace stretto
