// One request to an OpenAI server over HTTP/1.1, streamed, with the times at which tokens came:
// what `stretto load` makes many of. Blocking; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto {

struct ServerAddress {
  std::string host, port;
  std::string api_key = {};  // shown to the server; empty: none
};

// Of "http://HOST[:PORT][/]"; UserError for anything else.
ServerAddress server_address(const std::string& url);

// The first model that the server names. UserError where it does not answer.
std::string first_model(const ServerAddress& server);

struct LoadRequest {
  std::string model;
  std::vector<int> prompt;
  std::int64_t max_tokens = 1;
  double timeout_s = 600;  // without news: comments of a stream are none
};

struct LoadAnswer {
  std::string failure;  // empty: the answer came whole
  std::int64_t tokens = 0;
  double first_token_s = 0, whole_s = 0;  // since the request was sent
};

LoadAnswer ask(const ServerAddress& server, const LoadRequest& request);

}  // namespace stretto
