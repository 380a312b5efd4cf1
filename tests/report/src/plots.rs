//! Drawing: lines over a quantity, and groups of bars, as SVG to be put into the page. Used by `sections.rs`.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that also those tell apart who see few (Okabe and Ito).
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(crate) const RED: RGBColor = RGBColor(213, 94, 0);
pub(crate) const GREY: RGBColor = RGBColor(130, 130, 130);
/// Of one hue, from dark to light: lines that tell the same of different worlds.
pub(crate) const BLUES: [RGBColor; 3] = [
    RGBColor(0, 62, 110),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
];
pub(crate) const REDS: [RGBColor; 3] = [
    RGBColor(140, 45, 4),
    RGBColor(213, 94, 0),
    RGBColor(244, 165, 90),
];
const INK: RGBColor = RGBColor(40, 40, 40);
pub(crate) const PALE: RGBColor = RGBColor(225, 225, 225);

const SIZE: (u32, u32) = (960, 400);
const FONT: &str = "sans-serif";
const TEXT: i32 = 15;
const DASH: i32 = 6;

/// Widths of a line, and of one that others run along and that is to be seen behind them.
pub(crate) const THIN: u32 = 2;
pub(crate) const WIDE: u32 = 9;

/// Lines; `None` as label: not in the legend.
pub(crate) struct Line {
    pub(crate) label: Option<String>,
    pub(crate) color: RGBColor,
    pub(crate) width: u32,
    pub(crate) dashed: bool,
    /// Points are few, and shown.
    pub(crate) dotted: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot of lines.
pub(crate) struct Lines<'a> {
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    pub(crate) x_range: Range<f64>,
    pub(crate) y_range: Range<f64>,
    pub(crate) x_label: &'a dyn Fn(&f64) -> String,
    /// Ticks of the horizontal axis, about.
    pub(crate) x_ticks: usize,
    pub(crate) legend: SeriesLabelPosition,
    pub(crate) lines: Vec<Line>,
}

impl Lines<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
        Ok(svg)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Failure> {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(68)
            .build_cartesian_2d(self.x_range.clone(), self.y_range.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(PALE)
            .axis_style(INK)
            .x_labels(self.x_ticks)
            .y_labels(6)
            .x_label_formatter(self.x_label)
            .y_label_formatter(&plain)
            .x_desc(self.x)
            .y_desc(self.y)
            .label_style((FONT, TEXT, &INK))
            .axis_desc_style((FONT, TEXT + 1, &INK))
            .draw()?;
        for line in &self.lines {
            let (color, style) = (line.color, line.color.stroke_width(line.width));
            let points = line.points.iter().copied();
            let drawn = if line.dashed {
                chart.draw_series(DashedLineSeries::new(points, DASH, DASH, style))?
            } else {
                chart.draw_series(LineSeries::new(points, style))?
            };
            if let Some(label) = &line.label {
                // Dashes are two, a line is one from end to end.
                let gap = if line.dashed { 3 } else { 0 };
                let width = line.width + 1;
                drawn.label(label.as_str()).legend(move |(x, y)| {
                    let dash = |from, to| {
                        PathElement::new(vec![(from, 0), (to, 0)], color.stroke_width(width))
                    };
                    EmptyElement::at((x, y)) + dash(0, 11 - gap) + dash(11 + gap, 22)
                });
            }
            if line.dotted {
                let dot = |point: &(f64, f64)| Circle::new(*point, 4, color.filled());
                chart.draw_series(line.points.iter().map(dot))?;
            }
        }
        if self.lines.iter().any(|line| line.label.is_some()) {
            chart
                .configure_series_labels()
                .position(self.legend.clone())
                .background_style(WHITE.mix(0.85))
                .border_style(PALE)
                .label_font((FONT, TEXT, &INK))
                .legend_area_size(28)
                .margin(14)
                .draw()?;
        }
        area.present()?;
        Ok(())
    }
}

/// Groups of bars.
pub(crate) struct Bars<'a> {
    pub(crate) y: &'a str,
    pub(crate) groups: Vec<&'a str>,
    pub(crate) kinds: Vec<(&'a str, RGBColor)>,
    /// Group by group, kind by kind; NaN where there is no end to it.
    pub(crate) values: Vec<Vec<f64>>,
}

/// Part of a group's width that is bars.
const FILLED: f64 = 0.8;

/// Room over the highest bar: for its figure, and for the legend.
const HEADROOM: f64 = 1.28;

impl Bars<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
        Ok(svg)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Failure> {
        area.fill(&WHITE)?;
        let all = self.values.iter().flatten().copied();
        let highest = all.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(32)
            .y_label_area_size(68)
            .build_cartesian_2d(0.0..self.groups.len() as f64, 0.0..highest * HEADROOM)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(PALE)
            .axis_style(INK)
            .x_labels(0)
            .y_labels(6)
            .y_label_formatter(&plain)
            .y_desc(self.y)
            .label_style((FONT, TEXT, &INK))
            .axis_desc_style((FONT, TEXT + 1, &INK))
            .draw()?;
        let width = FILLED / self.kinds.len() as f64;
        for (kind, (label, color)) in self.kinds.iter().enumerate() {
            let bar = |(group, values): (usize, &Vec<f64>)| {
                let left = group as f64 + (1.0 - FILLED) / 2.0 + kind as f64 * width;
                let value = Some(values[kind]).filter(|value| value.is_finite());
                let corners = [(left, 0.0), (left + width * 0.92, value.unwrap_or(0.0))];
                Rectangle::new(corners, color.filled())
            };
            let color = *color;
            chart
                .draw_series(self.values.iter().enumerate().map(bar))?
                .label(*label)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 6), (x + 18, y + 6)], color.filled())
                });
        }
        let above = Pos::new(HPos::Center, VPos::Bottom);
        let small = (FONT, TEXT - 2).into_font().color(&INK).pos(above);
        let below = Pos::new(HPos::Center, VPos::Top);
        let named = (FONT, TEXT).into_font().color(&INK).pos(below);
        for (group, values) in self.values.iter().enumerate() {
            for (kind, value) in values.iter().enumerate() {
                let at = group as f64 + (1.0 - FILLED) / 2.0 + (kind as f64 + 0.46) * width;
                let (text, height) = if value.is_finite() {
                    (figure(*value), *value)
                } else {
                    ("never".to_owned(), 0.0)
                };
                let (x, y) = chart.backend_coord(&(at, height));
                area.draw(&Text::new(text, (x, y - 4), small.clone()))?;
            }
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
            area.draw(&Text::new(self.groups[group], (x, y + 8), named.clone()))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(PALE)
            .label_font((FONT, TEXT, &INK))
            .legend_area_size(26)
            .margin(10)
            .draw()?;
        area.present()?;
        Ok(())
    }
}

type Failure = DrawingAreaErrorKind<std::io::Error>;

/// A number without what says nothing.
pub(crate) fn plain(value: &f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}")
}

/// Three digits or more.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "–".into(),
        size if size >= 100.0 || value == value.round() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}
