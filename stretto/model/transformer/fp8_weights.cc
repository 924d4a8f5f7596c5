#include "stretto/model/transformer/fp8_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr.h"

namespace stretto {
namespace {

constexpr float kLargest = 448;  // of e4m3

bool begins_block(std::int64_t at) { return at % kWeightBlock == 0; }
std::int64_t blocks_of(std::int64_t size) { return ceil_div(size, kWeightBlock); }

// Element `i` of a row.
template <DType kDType>
float load_from(const std::byte* row, std::int64_t i) {
  if constexpr (kDType == DType::kF32) {
    float v = 0;
    std::memcpy(&v, row + i * 4, sizeof(v));
    return v;
  } else {
    std::uint16_t v = 0;
    std::memcpy(&v, row + i * 2, sizeof(v));
    return kDType == DType::kBF16 ? bf16_to_f32(v) : f16_to_f32(v);
  }
}

// Block `b` of rows of `from`, whose scales go to `scales` and numbers to `to` rows.
template <DType kDType>
void quantize_rows(const Matrix& from, std::int64_t b, std::byte* to, float* scales) {
  const std::int64_t first = b * kWeightBlock, cols = from.cols();
  const std::int64_t rows = std::min(kWeightBlock, from.rows() - first);
  for (std::int64_t col = 0; col < cols; col += kWeightBlock) {
    const std::int64_t end = std::min(col + kWeightBlock, cols);
    float largest = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* row = from.row(first + r);
      for (std::int64_t c = col; c < end; ++c) {
        largest = std::max(largest, std::abs(load_from<kDType>(row, c)));
      }
    }
    scales[col / kWeightBlock] = largest / kLargest;
    const float times = largest > 0 ? kLargest / largest : 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* row = from.row(first + r);
      for (std::int64_t c = col; c < end; ++c) {
        to[r * cols + c] = std::byte{f32_to_f8e4m3(load_from<kDType>(row, c) * times)};
      }
    }
  }
}

void quantize_block_rows(const Matrix& from, std::int64_t b, std::byte* to, float* scales) {
  switch (from.dtype()) {
    case DType::kF32:
      return quantize_rows<DType::kF32>(from, b, to, scales);
    case DType::kBF16:
      return quantize_rows<DType::kBF16>(from, b, to, scales);
    case DType::kF16:
      return quantize_rows<DType::kF16>(from, b, to, scales);
    default:
      throw InternalError("weights of a dtype that is not read");
  }
}

// [rows, cols] -> e4m3 [rows, cols] and scales [ceil(rows/128), ceil(cols/128)].
void quantize(const Matrix& from, std::byte* to, float* scales) {
  constexpr std::int64_t kElementsOfThread = 1 << 22;
  const std::int64_t count = blocks_of(from.rows());
  auto threads = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  threads = std::clamp<std::int64_t>(from.rows() * from.cols() / kElementsOfThread, 1, threads);
  auto take = [&](std::int64_t worker) {
    for (std::int64_t b = worker; b < count; b += threads) {
      quantize_block_rows(from, b, to + b * kWeightBlock * from.cols(),
                          scales + b * blocks_of(from.cols()));
    }
  };
  std::vector<std::jthread> others;
  for (std::int64_t i = 1; i < threads; ++i) others.emplace_back(take, i);
  take(0);
}

}  // namespace

ProductMatrix::ProductMatrix(const Checkpoint& checkpoint, const ModelConfig& config, DType plain,
                             const Size& size)
    : checkpoint_(checkpoint), kind_(config.product_weights), size_(size) {
  const bool fp8 = kind_ != ProductWeights::kStored;
  made_.weight = Matrix(fp8 ? DType::kF8E4M3 : plain, size.parts * size.rows, size.cols);
  if (!fp8) return;
  scale_rows_ = blocks_of(size.rows);
  made_.scales = Matrix(DType::kF32, size.parts * scale_rows_, blocks_of(size.cols));
}

void ProductMatrix::add(std::int64_t part, const std::string& name, const Matrix::Cut& cut) {
  Matrix::Cut to = cut;
  to.to += part * size_.rows;
  switch (kind_) {
    case ProductWeights::kStored:
      return made_.weight.copy_from(checkpoint_.tensor(name), to);
    case ProductWeights::kFp8Stored:
      made_.weight.copy_from(checkpoint_.fp8_tensor(name), to);
      return add_scales(part, name, cut);
    case ProductWeights::kFp8Made:
      break;
  }
  if (part != part_idx_) quantize_part();
  part_idx_ = part;
  const TensorView& view = checkpoint_.tensor(name);
  if (part_.empty()) part_ = Matrix(view.dtype, size_.rows, size_.cols);
  if (part_.dtype() != view.dtype && part_.dtype() != DType::kF32) {
    Matrix wide(DType::kF32, size_.rows, size_.cols);
    wide.copy_from(
        {.dtype = part_.dtype(), .shape = {size_.rows, size_.cols}, .data = part_.data()},
        {.count = size_.rows});
    part_ = std::move(wide);
  }
  part_.copy_from(view, cut);
}

void ProductMatrix::add_scales(std::int64_t part, const std::string& name, const Matrix::Cut& cut) {
  if (cut.count == 0 || cut.num_cols == 0) return;
  STRETTO_CHECK(begins_block(cut.first) && begins_block(cut.to) && begins_block(cut.first_col) &&
                    begins_block(cut.to_col),
                name + ": a block is cut");
  made_.scales.copy_from(checkpoint_.tensor(scales_name(name)),
                         {.first = cut.first / kWeightBlock,
                          .count = blocks_of(cut.count),
                          .to = part * scale_rows_ + cut.to / kWeightBlock,
                          .first_col = cut.first_col / kWeightBlock,
                          .num_cols = cut.num_cols < 0 ? -1 : blocks_of(cut.num_cols),
                          .to_col = cut.to_col / kWeightBlock});
}

void ProductMatrix::quantize_part() {
  if (part_.empty()) return;
  quantize(part_, made_.weight.row(part_idx_ * size_.rows),
           reinterpret_cast<float*>(made_.scales.row(part_idx_ * scale_rows_)));
  part_ = Matrix();
}

ProductMatrix::Made ProductMatrix::finish() {
  quantize_part();
  return std::move(made_);
}

}  // namespace stretto
