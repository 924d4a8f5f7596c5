// How near single-rank decode comes to the bandwidth of whatever holds the weights: a token reads
// every weight once, so the bound is a plain read of as many bytes. Both are timed in turn, in one
// run; the ratio is per pair.
//   decode_bench MODEL_DIR [dtype] [pairs]
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/statistics.h"
#include "stretto/engine/generate.h"
#include "stretto/model/transformer/model_buffers.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reads the buffer once with independent sums, which the compiler vectorises.
std::uint64_t read_all(const std::vector<std::uint64_t>& words) {
  std::uint64_t sums[32] = {};
  std::size_t i = 0;
  for (; i + 32 <= words.size(); i += 32) {
    for (std::size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), std::uint64_t{0});
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw stretto::UserError("usage: decode_bench MODEL_DIR [dtype] [pairs]");
  stretto::ModelFiles files(argv[1]);
  stretto::DType dtype = stretto::activation_dtype(argc > 2 ? argv[2] : "float32", files.config);
  int pairs = argc > 3 ? std::stoi(argv[3]) : 40;
  constexpr int kTokens = 16;

  stretto::World world({.size = 1});
  std::vector<double> ratios, token_seconds, bandwidths;
  std::size_t weight_bytes = 0;
  world.run([&](stretto::Rank& rank) {
    constexpr int kPage = 64;
    stretto::BatchModel model(rank, files.config, files.checkpoint,
                              {.dtype = dtype,
                               .max_rows = 1,
                               .max_tokens = kPage,
                               .cache = {.page = kPage, .num_pages = 1, .sequences = 1}});
    for (const stretto::step::Buffer& b : stretto::model_buffers(model.shape())) {
      if (!b.name.ends_with("_cache")) weight_bytes += stretto::step::num_bytes(b);
    }
    const int token = 5, page = 0;
    auto step = [&](std::int64_t position) {
      const stretto::BatchPiece piece{
          .tokens = {&token, 1}, .first = position, .pages = {&page, 1}, .wanted = 1};
      model.step({&piece, 1}, stretto::BatchModel::Visit());
    };
    std::vector<std::uint64_t> words(weight_bytes / 8, 1);
    std::uint64_t sink = 0;
    for (int i = 0; i < pairs + 3; ++i) {
      step(0);
      Clock::time_point begin = Clock::now();
      for (int t = 0; t < kTokens; ++t) step(1 + t);
      double decode = seconds_since(begin) / kTokens;
      begin = Clock::now();
      for (int t = 0; t < kTokens; ++t) sink += read_all(words);
      double read = seconds_since(begin) / kTokens;
      if (i < 3) continue;  // warm-up
      token_seconds.push_back(decode);
      bandwidths.push_back(static_cast<double>(weight_bytes) / read);
      ratios.push_back(read / decode);
    }
    if (sink == 1) fmt::print("");
  });
  const stretto::MedianInterval ratio = stretto::median_interval(ratios);
  fmt::print(
      "{{\"benchmark\":\"decode\",\"dtype\":\"{}\",\"weight_bytes\":{},\"ms_per_token\":{:.4f},"
      "\"read_gb_per_s\":{:.2f},\"ratio\":{:.4f},\"ratio_95\":[{:.4f},{:.4f}],\"pairs\":{}}}\n",
      stretto::name(dtype), weight_bytes, stretto::median(token_seconds) * 1e3,
      stretto::median(bandwidths) / 1e9, ratio.median, ratio.low, ratio.high, ratios.size());
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "decode_bench: {}\n", e.what());
  return 2;
}
