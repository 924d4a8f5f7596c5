// `stretto serve`: the OpenAI API over one model. Routes requests, parses and tokenizes them on
// text workers, and leaves the rest to completion.h and engine/serving.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/engine/serving.h"
#include "stretto/server/chat_completion.h"
#include "stretto/server/http.h"

namespace stretto {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: a free one
  std::string model_name;
  std::string version;
  ChatOptions chat;
  std::vector<std::string> api_keys;  // none: everybody may ask
  int num_text_workers = 2;
  std::chrono::milliseconds shutdown_timeout{10'000};
  bool access_log = true;
  // Called on the server's thread for the first SIGTERM or SIGINT and for each further one.
  std::function<void(int count)> on_signal = {};
  HttpLimits limits;
};

class Server {
 public:
  // Listens, but answers nothing before start() or run(). UserError where the address cannot be
  // had, or a key is empty.
  Server(const ModelFiles& files, ServingEngine& engine, ServerOptions options);
  ~Server();  // as after a second signal
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url() const;
  // What chat does with this model, for the log.
  std::string describe_chat() const;
  // Answers from now on, on a thread of its own: with 503 and what the engine does until that is
  // ready. Signals end the process as ever.
  void start();
  // From now on SIGTERM and SIGINT end run().
  void take_signals();
  // Starts and takes signals where that is not done, and lasts until SIGTERM or SIGINT. Then no
  // more is taken, what runs may end within the time of the options, and idle connections are
  // closed. A second signal ends it at once. False where a text is still worked on, which nobody
  // can end: until it is, threads use this, the engine and the model, so that none of them may be
  // destroyed, and the process has to end without.
  [[nodiscard]] bool run();

 private:
  void join();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
