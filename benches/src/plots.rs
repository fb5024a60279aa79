//! The pictures of docs/performance.md and benches/README.md, drawn from a file of figures: throughput by round trip and rows.

mod chart;

use std::{error::Error, iter::once};

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

fn by_rows(tables: &[Table]) -> Chart {
    let rows = |table: &Table| table.id.strip_prefix("growth-")?.parse::<f64>().ok();
    let at: Vec<(f64, &Table)> = tables.iter().filter_map(|table| Some((rows(table)?, table))).collect();
    let lines = [
        ("handler a message, batch 100", growth::GROWN_EACH, growth::EMPTY_EACH),
        ("set-based handler, batch 500", growth::GROWN_SET, growth::EMPTY_SET),
    ];
    let series = |(name, grown, empty): (&str, _, _)| {
        let percent = at.iter().map(|(_, table)| median(table, grown) / median(table, empty) * 100.0);
        (name.to_owned(), once(100.0).chain(percent).collect())
    };
    Chart {
        name: "rows".to_owned(),
        title: "insert: throughput by rows in the table, % of that on an empty one beside it".to_owned(),
        axis: "rows",
        scale: Scale::Linear,
        labels: once("none".to_owned()).chain(at.iter().map(|(rows, _)| format!("{} M", rows / 1e6))).collect(),
        series: if at.is_empty() { Vec::new() } else { lines.map(series).to_vec() },
    }
}
