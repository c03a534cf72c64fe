#include "bench_svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "bench_table.hpp"

namespace cli {

namespace {

constexpr double kWidth = 430, kHeight = 320;                       // of a chart
constexpr double kLeft = 64, kRight = 16, kTop = 40, kBottom = 50;  // around the plot
constexpr std::array<const char*, 4> kColours = {"#1f5fa8", "#c1541b", "#3b8a4e", "#7a4fa3"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return out;
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& more = "") {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor +
         "\"" + more + ">" + escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) +
         "\" y2=\"" + fixed(y2, 1) + "\" stroke=\"" + colour + "\"/>\n";
}

std::string number(double value) {
  int digits = 0;
  for (double rest = value; digits < 6 && std::abs(rest - std::round(rest)) > 1e-6; rest *= 10)
    ++digits;
  return fixed(value, digits);
}

/// 1, 2 or 5 times a power of ten, so that about five steps reach `most`.
double tick_step(double most) {
  const double power = std::pow(10.0, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power * 5 >= most) return factor * power;
  return 10 * power;
}

std::string chart_svg(const Chart& chart, double x0) {
  double most = 0, low = 0, high = 0;
  for (const auto& series : chart.series)
    for (const auto& [x, y] : series.points) {
      most = std::max(most, x);
      low = low == 0 ? y : std::min(low, y);
      high = std::max(high, y);
    }
  if (most <= 0 || low <= 0) return "";
  const double step = tick_step(most), right = step * std::ceil(most / step);
  // Ticks at 1, 2 and 5 times powers of ten, from the last one below to the first one above.
  std::vector<double> ticks;
  for (double power = std::pow(10.0, std::floor(std::log10(low)));
       ticks.size() < 2 || ticks.back() < high; power *= 10)
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power <= low) ticks.clear();
      if (ticks.size() < 2 || ticks.back() < high) ticks.push_back(factor * power);
    }
  const double bottom = ticks.front();
  const double plot_width = kWidth - kLeft - kRight, plot_height = kHeight - kTop - kBottom;
  const auto at_x = [&](double x) { return x0 + kLeft + plot_width * x / right; };
  const auto at_y = [&](double y) {
    return kTop + plot_height * (1 - std::log(y / bottom) / std::log(ticks.back() / bottom));
  };

  std::string out = text_at(x0 + kLeft, 22, "start", chart.title, " font-weight=\"bold\"");
  for (const double y : ticks)
    out += line(at_x(0), at_y(y), at_x(right), at_y(y), "#dddddd") +
           text_at(at_x(0) - 6, at_y(y) + 4, "end", number(y));
  for (int i = 0; i * step <= right * 1.001; ++i)
    out += line(at_x(i * step), at_y(bottom), at_x(i * step), at_y(bottom) + 5, "#444444") +
           text_at(at_x(i * step), at_y(bottom) + 19, "middle", number(i * step));
  out += line(at_x(0), at_y(bottom), at_x(right), at_y(bottom), "#444444") +
         line(at_x(0), at_y(bottom), at_x(0), kTop, "#444444") +
         text_at(x0 + kLeft + plot_width / 2, kHeight - 10, "middle", chart.x_label);
  const double middle = kTop + plot_height / 2;
  out += text_at(x0 + 14, middle, "middle", chart.y_label,
                 " transform=\"rotate(-90 " + fixed(x0 + 14, 1) + " " + fixed(middle, 1) + ")\"");
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const char* const colour = kColours[i % kColours.size()];
    std::string path, marks;
    for (const auto& [x, y] : chart.series[i].points) {
      path += fixed(at_x(x), 1) + "," + fixed(at_y(y), 1) + " ";
      marks += "<circle cx=\"" + fixed(at_x(x), 1) + "\" cy=\"" + fixed(at_y(y), 1) +
               "\" r=\"3.5\" fill=\"" + colour + "\"/>\n";
    }
    out += "<polyline points=\"" + path + "\" fill=\"none\" stroke-width=\"2\" stroke=\"" + colour +
           "\"/>\n" + marks;
    const double y = kTop + 14 + 17 * static_cast<double>(i);
    out += "<rect x=\"" + fixed(at_x(0) + 10, 1) + "\" y=\"" + fixed(y - 9, 1) +
           "\" width=\"12\" height=\"10\" fill=\"" + colour + "\"/>\n" +
           text_at(at_x(0) + 28, y, "start", chart.series[i].name);
  }
  return out;
}

}  // namespace

std::string svg(const std::vector<Chart>& charts) {
  const std::string width = fixed(kWidth * static_cast<double>(charts.size()), 0),
                    height = fixed(kHeight, 0);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + width + " " +
                    height +
                    "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"" +
                    width + "\" height=\"" + height + "\" fill=\"#ffffff\"/>\n";
  for (std::size_t i = 0; i < charts.size(); ++i)
    out += chart_svg(charts[i], kWidth * static_cast<double>(i));
  return out + "</svg>\n";
}

}  // namespace cli
