// Charts as SVG text: points joined by lines, axes with ticks, a legend.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cli {

struct Chart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // x >= 0, y > 0
  };
  std::string title, x_label, y_label;
  std::vector<Series> series;  // at most as many as there are colours: 4
};

/// Side by side. x begins at 0; y is logarithmic. Characters that are not ASCII become '?'.
std::string svg(const std::vector<Chart>& charts);

}  // namespace cli
