//! The inner loop of every matrix product: a tile of a few rows and one panel's columns, which
//! stays in registers while the loop runs over the inner dimension.

use pulp::{Arch, Simd, WithSimd};

/// Registers that a tile is wide. Two, so that each number of the left matrix is used twice once
/// it is loaded.
const REGISTERS: usize = 2;

/// The most rows of a tile: 24 of AVX-512's or NEON's 32 registers hold sums.
pub const MAX_ROWS: usize = 12;

/// A tile's sums.
pub type Sums<S, const ROWS: usize> = [[<S as Simd>::f32s; REGISTERS]; ROWS];

/// Columns of a panel with the registers of `S`.
#[inline(always)]
pub const fn panel_width<S: Simd>() -> usize {
    REGISTERS * S::F32_LANES
}

/// [`panel_width`] with the registers of this processor.
pub fn width_of(arch: Arch) -> usize {
    struct Width;
    impl WithSimd for Width {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            panel_width::<S>()
        }
    }
    arch.dispatch(Width)
}

/// Work on `ROWS` rows of a matrix at once.
pub trait OnRows<S: Simd> {
    /// Computes rows `first..first + ROWS`.
    fn compute<const ROWS: usize>(&mut self, simd: S, first: usize);
}

/// Covers `count` rows with tiles, as high as the registers of `S` allow.
#[inline(always)]
pub fn by_tiles<S: Simd>(simd: S, count: usize, work: &mut impl OnRows<S>) {
    let mut first = 0;
    while S::REGISTER_COUNT >= 32 && count - first >= MAX_ROWS {
        work.compute::<MAX_ROWS>(simd, first);
        first += MAX_ROWS;
    }
    while count - first >= 6 {
        work.compute::<6>(simd, first);
        first += 6;
    }
    while count - first >= 3 {
        work.compute::<3>(simd, first);
        first += 3;
    }
    while first < count {
        work.compute::<1>(simd, first);
        first += 1;
    }
}

/// A tile of the product `left` · `panel`. `left` begins at the tile's first row and has `stride`
/// floats from row to row; `panel` is (inner, [`panel_width`]).
#[inline(always)]
pub fn product<S: Simd, const ROWS: usize>(
    simd: S,
    left: &[f32],
    stride: usize,
    panel: &[f32],
) -> Sums<S, ROWS> {
    let (panel, _) = S::as_simd_f32s(panel).0.as_chunks::<REGISTERS>();
    let mut sums = [[simd.splat_f32s(0.0); REGISTERS]; ROWS];
    match ROWS {
        12 => twelve(simd, left, stride, panel, &mut sums),
        6 => six(simd, left, stride, panel, &mut sums),
        3 => three(simd, left, stride, panel, &mut sums),
        1 => one(simd, left, stride, panel, &mut sums),
        _ => unreachable!("by_tiles has no tiles of {ROWS} rows"),
    }
    sums
}

/// The inner loop for a number of rows. It is written out row by row: where the compiler does not
/// unroll a loop over rows, as in the build of `make demo`, the sums would lie in memory.
macro_rules! tile {
    ($name:ident: $($index:literal $row:ident $sum:ident),+) => {
        #[inline(always)]
        fn $name<S: Simd>(
            simd: S,
            left: &[f32],
            stride: usize,
            panel: &[[S::f32s; REGISTERS]],
            sums: &mut [[S::f32s; REGISTERS]],
        ) {
            $(
                let $row = &left[$index * stride..][..panel.len()];
                let mut $sum = [simd.splat_f32s(0.0); REGISTERS];
            )+
            for (inner, columns) in panel.iter().enumerate() {
                $(
                    let factor = simd.splat_f32s($row[inner]);
                    $sum[0] = simd.mul_add_f32s(factor, columns[0], $sum[0]);
                    $sum[1] = simd.mul_add_f32s(factor, columns[1], $sum[1]);
                )+
            }
            $(sums[$index] = $sum;)+
        }
    };
}

tile!(twelve: 0 r0 s0, 1 r1 s1, 2 r2 s2, 3 r3 s3, 4 r4 s4, 5 r5 s5, 6 r6 s6, 7 r7 s7, 8 r8 s8,
    9 r9 s9, 10 r10 s10, 11 r11 s11);
tile!(six: 0 r0 s0, 1 r1 s1, 2 r2 s2, 3 r3 s3, 4 r4 s4, 5 r5 s5);
tile!(three: 0 r0 s0, 1 r1 s1, 2 r2 s2);
tile!(one: 0 r0 s0);

/// Writes one row of a tile to `row`, or as much of it as `row` holds.
#[inline(always)]
pub fn store<S: Simd>(simd: S, row: &mut [f32], values: [S::f32s; REGISTERS]) {
    if row.len() >= panel_width::<S>() {
        let (registers, _) = S::as_mut_simd_f32s(row);
        registers[..REGISTERS].copy_from_slice(&values);
    } else {
        let (head, tail) = row.split_at_mut(row.len().min(S::F32_LANES));
        simd.partial_store_f32s(head, values[0]);
        simd.partial_store_f32s(tail, values[1]);
    }
}
