//! The plots of the reports, as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::Result;
use crate::report::{Figure, Report, median};

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 98, 14),
    RGBColor(44, 140, 44),
    RGBColor(148, 60, 170),
    RGBColor(120, 90, 70),
    RGBColor(90, 90, 90),
];

/// Width of a line of names.
const NAMES: u32 = 420;

/// Every ratio of a report on one line: its rounds as dots, its median as a bar, its target in red.
pub fn rounds(path: &Path, report: &Report) -> Result<()> {
    // A side of a quick run may have taken less than a clock tick, so that there is no ratio.
    let is_drawn = |figure: &&Figure| {
        let is_number = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
        figure.is_ratio() && figure.rounds.iter().all(is_number)
    };
    let figures: Vec<&Figure> = report.figures.iter().filter(is_drawn).collect();
    if figures.is_empty() {
        return Ok(());
    }
    let limits = figures.iter().filter_map(|figure| figure.target.limit());
    let rounds = figures
        .iter()
        .flat_map(|figure| figure.rounds.iter().copied());
    let (low, high) = limits
        .chain(rounds)
        .fold((f64::MAX, f64::MIN), |(low, high), x| {
            (low.min(x), high.max(x))
        });
    let height = 70 + 34 * figures.len() as u32;
    let root = SVGBackend::new(path, (980, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            format!("{}: ratios of the rounds", report.name),
            ("sans-serif", 16),
        )
        .margin(8)
        .x_label_area_size(26)
        .y_label_area_size(NAMES)
        // Not `log_scale`: it has labels at powers of ten only.
        .build_cartesian_2d(
            (low * 0.9).ln()..(high * 1.1).ln(),
            0.0..figures.len() as f64,
        )?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .x_label_formatter(&|x| format!("{:.2}", x.exp()))
        .draw()?;
    for (place, figure) in figures.iter().enumerate() {
        let y = figures.len() as f64 - place as f64 - 0.5;
        let bar = |x: f64, colour: RGBColor| {
            let x = x.ln();
            PathElement::new([(x, y - 0.35), (x, y + 0.35)], colour.stroke_width(2))
        };
        let (_, pixel) = chart.plotting_area().map_coordinate(&(low.ln(), y));
        let name = Text::new(figure.name.clone(), (10, pixel - 6), ("sans-serif", 12));
        root.draw(&name)?;
        if let Some(limit) = figure.target.limit() {
            chart.draw_series([bar(limit, RED)])?;
        }
        chart.draw_series(
            figure
                .rounds
                .iter()
                .map(|x| Circle::new((x.ln(), y), 3, COLOURS[0].filled())),
        )?;
        chart.draw_series([bar(median(&figure.rounds), COLOURS[0])])?;
    }
    root.present()?;
    Ok(())
}

/// A line of points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over an axis of sizes, which grows by factors.
pub fn lines(path: &Path, title: &str, x: &str, y: &str, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let from = points().map(|p| p.0).fold(f64::MAX, f64::min);
    let to = points().map(|p| p.0).fold(f64::MIN, f64::max);
    let top = points().map(|p| p.1).fold(0.0, f64::max) * 1.1;
    let root = SVGBackend::new(path, (760, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((from..to * 1.001).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_desc(x)
        .y_desc(y)
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(
                LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3),
            )?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    if lines.len() > 1 {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
