// Encoding and decoding speed on English prose and on a hostile line.
#include <benchmark/benchmark.h>

#include "stretto/base/json.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {
namespace {

const std::filesystem::path kCheckpoint = "checkpoints/debian-llama-8m";

std::string prose() {
  std::string text;
  const Json golden = read_json_file(kCheckpoint / "golden.json");
  for (const Json& prompt : golden["prompts"]) {
    text += prompt["text"].get<std::string>() + prompt["greedy_text"].get<std::string>() + "\n";
  }
  const std::string once = text;
  while (text.size() < (1 << 20)) text += once;
  return text;
}

void encode(benchmark::State& state, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::load(kCheckpoint);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void BM_EncodeProse(benchmark::State& state) { encode(state, prose()); }
void BM_EncodeOneLetter(benchmark::State& state) { encode(state, std::string(1 << 20, 'a')); }

void BM_DecodeProse(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(kCheckpoint);
  const std::string text = prose();
  const std::vector<int> ids = tokenizer.encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void BM_Load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(kCheckpoint));
}

BENCHMARK(BM_EncodeProse);
BENCHMARK(BM_EncodeOneLetter);
BENCHMARK(BM_DecodeProse);
BENCHMARK(BM_Load);

}  // namespace
}  // namespace stretto
