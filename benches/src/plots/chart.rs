//! A line chart as plain SVG. Its colours are readable on white and on black; text and axes follow the reader's scheme.

use std::fmt::Write as _;

use crate::report::number;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From nothing up.
    Linear,
    Logarithmic,
}

#[derive(Clone)]
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) axis: &'static str,
    pub(super) scale: Scale,
    /// The places on the axis, at equal distances.
    pub(super) labels: Vec<String>,
    /// The lines that are drawn: a name, and a value at each place.
    pub(super) series: Vec<(String, Vec<f64>)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 48.0;
const COLOURS: [&str; 5] = ["#2f7ed8", "#d9822b", "#2a9d5c", "#a855c7", "#c94f4f"];
const STYLE: &str = "text{font:13px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#8884}
@media(prefers-color-scheme:dark){text{fill:#ddd}}";

impl Chart {
    pub(super) fn has_points(&self) -> bool {
        self.series.iter().any(|(_, points)| points.iter().any(|point| point.is_finite()))
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|(_, points)| points.iter().copied()).filter(|value| value.is_finite())
    }

    /// The values at which lines go across, the lowest and the highest of which bound the picture.
    fn grid(&self) -> Vec<f64> {
        let (least, most) = (self.values().fold(f64::MAX, f64::min), self.values().fold(0.0, f64::max));
        match self.scale {
            Scale::Linear => {
                let rough = most / 5.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(most);
                (0..=6).map(|n| f64::from(n) * step).take_while(|value| *value < most + step).collect()
            }
            Scale::Logarithmic => {
                let range = least.log10().floor() as i32..=most.log10().ceil() as i32;
                range.map(|power| 10_f64.powi(power)).collect()
            }
        }
    }

    fn x(&self, place: usize) -> f64 {
        let places = self.labels.len().saturating_sub(1).max(1) as f64;
        LEFT + 24.0 + (WIDTH - LEFT - RIGHT - 48.0) * place as f64 / places
    }

    fn y(&self, value: f64, grid: &[f64]) -> f64 {
        let scaled = |value: f64| if self.scale == Scale::Logarithmic { value.log10() } else { value };
        let (least, most) = (scaled(grid[0]), scaled(grid[grid.len() - 1]));
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (scaled(value) - least) / (most - least)
    }

    pub(super) fn svg(&self) -> String {
        let (grid, mut svg) = (self.grid(), String::new());
        // Writing to a String cannot fail.
        let _ = self.draw(&mut svg, &grid);
        svg
    }

    fn draw(&self, svg: &mut String, grid: &[f64]) -> std::fmt::Result {
        writeln!(svg, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">"#)?;
        writeln!(svg, "<title>{}</title>\n<style>{STYLE}</style>", escaped(&self.title))?;
        writeln!(svg, r#"<text class="title" x="12" y="24">{}</text>"#, escaped(&self.title))?;
        for value in grid {
            let (y, end) = (self.y(*value, grid), WIDTH - RIGHT);
            writeln!(svg, r#"<line class="grid" x1="{LEFT}" x2="{end}" y1="{y:.1}" y2="{y:.1}"/>"#)?;
            let (x, y, value) = (LEFT - 8.0, y + 4.0, thousands(*value));
            writeln!(svg, r#"<text x="{x}" y="{y:.1}" text-anchor="end">{value}</text>"#)?;
        }
        for (place, label) in self.labels.iter().enumerate() {
            let (x, y) = (self.x(place), HEIGHT - BOTTOM + 18.0);
            writeln!(svg, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{}</text>"#, escaped(label))?;
        }
        let (x, y) = ((WIDTH + LEFT) / 2.0, HEIGHT - 10.0);
        writeln!(svg, r#"<text x="{x}" y="{y}" text-anchor="middle">{}</text>"#, self.axis)?;
        for (number, ((name, points), colour)) in self.series.iter().zip(COLOURS).enumerate() {
            let at = |(place, value): (usize, &f64)| (self.x(place), self.y(*value, grid));
            let at: Vec<_> = points.iter().enumerate().filter(|(_, value)| value.is_finite()).map(at).collect();
            let line: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let line = line.join(" ");
            writeln!(svg, r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>"#)?;
            for (x, y) in at {
                writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{colour}"/>"#)?;
            }
            // The names stand below each other in the free corner: rates fall to the right on a scale of powers.
            let (x, anchor) =
                if self.scale == Scale::Logarithmic { (LEFT + 14.0, "start") } else { (WIDTH - RIGHT, "end") };
            let y = if self.scale == Scale::Logarithmic {
                HEIGHT - BOTTOM - 10.0 - 18.0 * (self.series.len() - 1 - number) as f64
            } else {
                HEIGHT - BOTTOM - 10.0 - 18.0 * number as f64
            };
            let name = escaped(name);
            writeln!(svg, r#"<text x="{x}" y="{y}" text-anchor="{anchor}" style="fill:{colour}">{name}</text>"#)?;
        }
        writeln!(svg, "</svg>")
    }
}

fn thousands(value: f64) -> String {
    if value >= 1000.0 { format!("{}k", value / 1000.0) } else { number(value).trim_end_matches(".00").to_owned() }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
