// exp(x) in 16 lanes, the same bits in every instruction set.
//
// x = n · ln 2 + r with |r| ≤ ln 2 / 2; ln 2 is split so that n · high is exact (Cody and Waite).
// exp(r) is its Taylor polynomial to r^7 / 7!, whose remainder on that interval, (ln 2 / 2)^8 / 8!
// = 5e-9, is a twelfth of a unit in the last place; with the roundings the error stays below 2 ulp
// (measured: 1.1). Below -87.3 the result stays at exp(-87.3) = 1.2e-38 and above 88.3 at 2.2e38,
// so that 2^n is a normal number. NaN gives NaN.
namespace roost::ROOST_ISA {

ROOST_INLINE F32 exp(F32 x) {
  // max and min return their second operand when one is NaN: x is the second.
  x = min(F32::splat(88.3f), max(F32::splat(-87.3f), x));
  const F32 n = round(x * F32::splat(1.44269504f));
  F32 r = fnma(n, F32::splat(0.693359375f), x);
  r = fnma(n, F32::splat(-2.12194440e-4f), r);
  F32 y = F32::splat(1.0f / 5040.0f);
  y = fma(y, r, F32::splat(1.0f / 720.0f));
  y = fma(y, r, F32::splat(1.0f / 120.0f));
  y = fma(y, r, F32::splat(1.0f / 24.0f));
  y = fma(y, r, F32::splat(1.0f / 6.0f));
  y = fma(y, r, F32::splat(0.5f));
  y = fma(y, r, F32::splat(1.0f));
  y = fma(y, r, F32::splat(1.0f));
  const I32 power = (n.to_i32() + I32::splat(127)).shift_left<23>();
  return y * power.as_f32();
}

}  // namespace roost::ROOST_ISA
