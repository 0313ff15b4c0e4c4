//! What a feed-forward layer does to each number between its two products.

use pulp::Simd;
use serde_json::Value;

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The number itself.
    None,
    /// x Φ(x), with the exact Φ.
    Gelu,
    /// GELU with Φ approximated by a hyperbolic tangent.
    GeluTanh,
    /// x where it is positive, else 0.
    Relu,
    /// x over 1 + e⁻ˣ.
    Silu,
    Tanh,
}

impl Activation {
    /// The activation that a `config.json` names. The error finishes "the model …".
    pub fn named(name: &Value) -> Result<Self, String> {
        match name.as_str().unwrap_or_default() {
            "gelu" => Ok(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "geluapproximate" => {
                Ok(Self::GeluTanh)
            }
            "relu" => Ok(Self::Relu),
            "silu" | "swish" => Ok(Self::Silu),
            _ => Err(format!(
                "has the activation {name}; elf computes \"gelu\", its approximations, \"relu\" and \
                 \"silu\""
            )),
        }
    }

    /// The function of each number in the register.
    #[inline(always)]
    pub fn apply<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        let one = simd.splat_f32s(1.0);
        match self {
            Self::None => x,
            Self::Gelu => {
                let half = simd.mul_f32s(x, simd.splat_f32s(0.5));
                let scaled = simd.mul_f32s(x, simd.splat_f32s(std::f32::consts::FRAC_1_SQRT_2));
                simd.mul_add_f32s(half, erf(simd, scaled), half)
            }
            Self::GeluTanh => {
                // x · sigmoid(2u) is x/2 · (1 + tanh u), and u is √(2/π) · (x + 0.044715 x³).
                const LINEAR: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
                let cubic = simd.mul_add_f32s(
                    simd.mul_f32s(x, x),
                    simd.splat_f32s(0.044_715 * LINEAR),
                    simd.splat_f32s(LINEAR),
                );
                simd.mul_f32s(x, sigmoid(simd, simd.mul_f32s(x, cubic)))
            }
            Self::Relu => simd.max_f32s(x, zero),
            Self::Silu => simd.mul_f32s(x, sigmoid(simd, x)),
            Self::Tanh => {
                let both = sigmoid(simd, simd.add_f32s(x, x));
                simd.sub_f32s(simd.add_f32s(both, both), one)
            }
        }
    }
}

#[inline(always)]
fn sigmoid<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let power = exp2(
        simd,
        simd.mul_f32s(x, simd.splat_f32s(-std::f32::consts::LOG2_E)),
    );
    simd.div_f32s(one, simd.add_f32s(one, power))
}

/// 2ˣ, within 3 units of the last place. x is taken as −126 below that and as 127 above.
#[inline(always)]
pub fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // The Taylor series of 2ᶠ for f in −½..½.
    const SERIES: [f32; 7] = [
        1.540_353e-4,
        1.333_355_8e-3,
        9.618_129e-3,
        5.550_411e-2,
        0.240_226_5,
        std::f32::consts::LN_2,
        1.0,
    ];
    // Added to a small number, it leaves the nearest whole number in the lowest bits.
    const TO_WHOLE: f32 = 12_582_912.0;
    let x = simd.max_f32s(x, simd.splat_f32s(-126.0));
    let x = simd.min_f32s(x, simd.splat_f32s(127.0));
    let shifted = simd.add_f32s(x, simd.splat_f32s(TO_WHOLE));
    let fraction = simd.sub_f32s(x, simd.sub_f32s(shifted, simd.splat_f32s(TO_WHOLE)));
    let power = polynomial(simd, fraction, &SERIES);
    let exponent =
        simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(power), exponent))
}

/// The error function within 5e-7: the rational approximation of Eigen
/// (`generic_fast_erf_float`), which XLA has too.
#[inline(always)]
fn erf<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    const OVER: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const UNDER: [f32; 5] = [
        -1.456_607_2e-5,
        -2.133_740_5e-4,
        -1.682_826_9e-3,
        -7.373_329_1e-3,
        -1.426_474e-2,
    ];
    // Beyond 4 the error function is 1 to a float's precision.
    let x = simd.max_f32s(x, simd.splat_f32s(-4.0));
    let x = simd.min_f32s(x, simd.splat_f32s(4.0));
    let square = simd.mul_f32s(x, x);
    let over = simd.mul_f32s(x, polynomial(simd, square, &OVER));
    simd.div_f32s(over, polynomial(simd, square, &UNDER))
}

/// Horner's scheme; the highest coefficient comes first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::f32s, coefficients: &[f32; N]) -> S::f32s {
    let mut sum = simd.splat_f32s(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = simd.mul_add_f32s(sum, x, simd.splat_f32s(*coefficient));
    }
    sum
}

/// x Φ(x) in 64-bit floats, for |x| up to 6; the Taylor series of the error function.
#[cfg(test)]
pub fn exact_gelu(x: f64) -> f64 {
    let scaled = x.clamp(-6.0, 6.0) / 2f64.sqrt();
    let (mut term, mut erf) = (scaled, scaled);
    for n in 1..200 {
        term *= -scaled * scaled / f64::from(n);
        erf += term / f64::from(2 * n + 1);
    }
    erf *= 2.0 / std::f64::consts::PI.sqrt();
    0.5 * x * (1.0 + erf)
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;

    struct Each<'a>(Activation, &'a mut [f32]);

    impl WithSimd for Each<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for value in self.1 {
                let result = self.0.apply(simd, simd.splat_f32s(*value));
                simd.partial_store_f32s(std::slice::from_mut(value), result);
            }
        }
    }

    #[test]
    fn activations_are_those_of_their_formulas() {
        let inputs: Vec<f32> = (-5000..=5000).map(|step| step as f32 / 1000.0).collect();
        type Exact = fn(f64) -> f64;
        let cases: [(Activation, Exact); 5] = [
            (Activation::Gelu, exact_gelu),
            (Activation::GeluTanh, |x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }),
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
            (Activation::Tanh, f64::tanh),
        ];
        for (activation, exact) in cases {
            let mut outputs = inputs.clone();
            Arch::new().dispatch(Each(activation, &mut outputs));
            for (x, ours) in inputs.iter().zip(outputs) {
                let error = (f64::from(ours) - exact(f64::from(*x))).abs();
                assert!(
                    error < 1e-6,
                    "{activation:?} of {x}: {ours}, off by {error:e}"
                );
            }
        }
    }

    #[test]
    fn numbers_far_away_stay_finite() {
        for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let mut numbers = [-1e4, -200.0, 200.0, 1e4];
            Arch::new().dispatch(Each(activation, &mut numbers));
            assert_eq!(numbers.map(|x| x.round() + 0.0), [0.0, 0.0, 200.0, 1e4]);
        }
    }
}
