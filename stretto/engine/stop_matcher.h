// Stop strings over text that arrives in pieces: follows the streaming detokenizer and stands
// before whatever shows the text. Holds back what may be the beginning of a stop string, lets the
// rest through.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stretto {

// The stop that is completed first ends the text, the longest one among those completed by the same
// byte; neither it nor anything after it is let through. The result does not depend on how the text
// was cut into pieces. Text is bytes: where both text and stops are UTF-8, pieces of whole
// characters come out as whole characters.
class StopMatcher {
 public:
  // UserError when a stop string is empty. Without stop strings everything passes at once.
  explicit StopMatcher(std::vector<std::string> stops);

  // Returns the text that is now certain to precede any stop; empty once stopped.
  std::string push(std::string_view piece);
  // The text ends here without a stop: returns what was held back.
  std::string finish();

  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // which one it was

 private:
  std::vector<std::string> stops_;
  std::string held_, stop_;
  bool stopped_ = false;
};

}  // namespace stretto
