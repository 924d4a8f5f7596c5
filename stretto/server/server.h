// `stretto serve`: the OpenAI API over one model. Routes requests, parses and tokenizes them on
// text workers, and leaves the rest to completion.h and engine/serving.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
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
  HttpLimits limits;
};

class Server {
 public:
  // Listens, but answers nothing before run(). UserError where the address cannot be had, or a key
  // is empty.
  Server(const ModelFiles& files, ServingEngine& engine, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url() const;
  // What chat does with this model, for the log.
  std::string describe_chat() const;
  // Until SIGTERM or SIGINT: then no more is taken, what runs may end within the time of the
  // options, and idle connections are closed. A second signal ends it at once.
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
