//! The pictures of docs/performance.md, drawn from a file of figures: throughput by round trip, batch, lanes and rows.

mod chart;

use std::error::Error;

use self::chart::{Chart, Scale};
use crate::{
    growth, network,
    report::{Line, Table},
    work::Work,
};

const FOLDER: &str = "docs/img";

/// Draws every picture that the tables have the figures for, and says which.
pub(crate) fn write(tables: &[Table]) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(FOLDER)?;
    let mut charts = Work::ALL.map(|work| by_round_trip(work, tables)).to_vec();
    charts.push(by_suffix(tables, "batch", "messages in a batch", ", batch "));
    charts.push(by_suffix(tables, "lanes", "lanes", " handler, "));
    charts.push(by_rows(tables));
    for chart in charts.into_iter().filter(Chart::has_points) {
        let file = format!("{FOLDER}/{}.svg", chart.name);
        std::fs::write(&file, chart.svg())?;
        println!("{file}");
    }
    Ok(())
}

fn median(table: &Table, line: &str) -> f64 {
    table.line(line).map_or(f64::NAN, Line::median)
}

fn by_round_trip(work: Work, tables: &[Table]) -> Chart {
    let prefix = format!("network-{}-", work.name());
    let at: Vec<(&str, &Table)> =
        tables.iter().filter_map(|table| Some((table.id.strip_prefix(&prefix)?, table))).collect();
    let lines = [network::SET, network::PIPELINED, network::IN_ORDER, network::AUTOCOMMIT, network::BY_HAND];
    Chart {
        name: format!("round-trip-{}", work.name()),
        title: format!("{}: messages a second by added round trip, one connection each", work.name()),
        axis: "ms added to each round trip",
        scale: Scale::Logarithmic,
        labels: at.iter().map(|(delay, _)| (*delay).to_owned()).collect(),
        series: lines.map(|line| (line.to_owned(), at.iter().map(|(_, table)| median(table, line)).collect())).to_vec(),
    }
}

/// A table whose lines are named after a series and, behind `separator`, a place on the axis.
fn by_suffix(tables: &[Table], id: &str, axis: &'static str, separator: &str) -> Chart {
    let (mut title, mut labels, mut series) = (String::new(), Vec::<String>::new(), Vec::<(String, Vec<f64>)>::new());
    if let Some(table) = tables.iter().find(|table| table.id == id) {
        title.clone_from(&table.title);
        for line in &table.lines {
            let Some((name, label)) = line.name.split_once(separator) else { continue };
            if !labels.iter().any(|known| known == label) {
                labels.push(label.to_owned());
            }
            match series.iter_mut().find(|(known, _)| known == name) {
                Some((_, points)) => points.push(line.median()),
                None => series.push((name.to_owned(), vec![line.median()])),
            }
        }
    }
    Chart { name: id.to_owned(), title, axis, scale: Scale::Linear, labels, series }
}

fn by_rows(tables: &[Table]) -> Chart {
    let grown = |table: &Table| {
        let rows: f64 = table.id.strip_prefix("growth-")?.parse().ok()?;
        let ratio = median(table, growth::GROWN_SET) / median(table, growth::EMPTY);
        Some((format!("{} M", rows / 1e6), ratio * 100.0))
    };
    let (labels, points): (Vec<_>, Vec<_>) = tables.iter().filter_map(grown).unzip();
    let title = "insert, set-based: throughput by rows in the table, % of that on an empty one beside it".to_owned();
    let series = vec![("set-based handler, batch 500".to_owned(), points)];
    Chart { name: "rows".to_owned(), title, axis: "rows", scale: Scale::Linear, labels, series }
}
