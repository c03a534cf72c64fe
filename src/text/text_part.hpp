// A piece of a rendered conversation.
#pragma once

#include <string>

namespace decant::detail {

/// Template text is special (control tokens count); content of a message is not.
struct TextPart {
  std::string text;
  bool special = false;
  int message = -1;  ///< the message that the part is content of, or -1
};

}  // namespace decant::detail
