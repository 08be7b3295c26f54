// fmt's functions, and its templates that fmt/format.h takes from a library.
#include <fmt/format-inl.h>

namespace fmt {
#if FMT_VERSION < 120000
namespace detail {
#endif
template auto locale_ref::get<std::locale>() const -> std::locale;
#if FMT_VERSION >= 120000
namespace detail {
#endif
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
}  // namespace detail
}  // namespace fmt
