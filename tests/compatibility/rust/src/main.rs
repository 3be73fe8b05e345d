//! The official Rust client's index writer and reader, driven by lines on standard input: an order, then its arguments.
//! Each order is answered by one line on standard output: `ok ...`, or `error ...` with the client's own words.

use futures_util::{pin_mut, StreamExt};
use pravega_client::client_factory::ClientFactory;
use pravega_client::index::{Fields, IndexReader, IndexWriter};
use pravega_client_config::ClientConfigBuilder;
use pravega_client_macros::Fields;
use pravega_client_shared::ScopedStream;
use std::io::{stdin, stdout, BufRead, Write};

#[derive(Fields, Debug, PartialOrd, PartialEq)]
struct Two {
    time: u64,
    offset: u64,
}

#[derive(Fields, Debug, PartialOrd, PartialEq)]
struct Three {
    time: u64,
    offset: u64,
    pos: u64,
}

#[derive(Debug, PartialOrd, PartialEq)]
struct Small {
    time: u64,
    offset: u64,
}

impl Fields for Small {
    fn get_field_values(&self) -> Vec<(&'static str, u64)> {
        vec![("time", self.time), ("offset", self.offset)]
    }

    fn get_record_size() -> usize {
        200
    }
}

enum Writer {
    Two(IndexWriter<Two>),
    Three(IndexWriter<Three>),
    Small(IndexWriter<Small>),
}

macro_rules! with_writer {
    ($writer:expr, $found:ident => $call:expr) => {
        match $writer.as_mut().expect("a writer was opened") {
            Writer::Two($found) => $call,
            Writer::Three($found) => $call,
            Writer::Small($found) => $call,
        }
    };
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{:02x}", byte)).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn name(text: &str) -> &'static str {
    Box::leak(text.to_string().into_boxed_str())
}

fn told<T: std::fmt::Display, E: std::fmt::Debug>(result: Result<T, E>) -> String {
    match result {
        Ok(value) => format!("ok {}", value),
        Err(error) => format!("error {:?}", error).replace('\n', " "),
    }
}

fn two(numbers: &[u64]) -> Two {
    Two { time: numbers[0], offset: numbers[1] }
}

fn three(numbers: &[u64]) -> Three {
    Three { time: numbers[0], offset: numbers[1], pos: numbers[2] }
}

fn small(numbers: &[u64]) -> Small {
    Small { time: numbers[0], offset: numbers[1] }
}

async fn append(writer: &mut Option<Writer>, numbers: &[u64], after: &[u64], data: Vec<u8>) -> String {
    macro_rules! by {
        ($found:expr, $make:ident) => {
            if after.is_empty() {
                told($found.append($make(numbers), data).await.map(|_| ""))
            } else {
                told($found.append_conditionally($make(numbers), $make(after), data).await.map(|_| ""))
            }
        };
    }
    match writer.as_mut().expect("a writer was opened") {
        Writer::Two(found) => by!(found, two),
        Writer::Three(found) => by!(found, three),
        Writer::Small(found) => by!(found, small),
    }
}

async fn read(reader: &IndexReader, start: u64, end: u64, most: usize) -> String {
    let records = match reader.read(start, end) {
        Ok(records) => records,
        Err(error) => return format!("error {:?}", error),
    };
    pin_mut!(records);
    let mut found = Vec::new();
    while found.len() < most {
        match records.next().await {
            Some(Ok(data)) => found.push(hex(&data)),
            Some(Err(error)) => return format!("error {:?}", error),
            None => break,
        }
    }
    format!("ok {}", found.join(","))
}

fn numbers(text: &str) -> Vec<u64> {
    text.split(',').filter(|one| !one.is_empty()).map(|one| one.parse().expect("a number")).collect()
}

fn main() {
    let address = std::env::args().nth(1).expect("the controller's address");
    let config = ClientConfigBuilder::default().controller_uri(address.as_str()).build().expect("a configuration");
    let factory = ClientFactory::new(config);
    let mut writer: Option<Writer> = None;
    let mut reader: Option<IndexReader> = None;
    for line in stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = factory.runtime().block_on(async {
            let opened = || reader.as_ref().expect("a reader was opened");
            match words[0] {
                "writer" => {
                    let stream = ScopedStream::from(words[1]);
                    writer = None;
                    writer = Some(match words[2] {
                        "two" => Writer::Two(factory.create_index_writer(stream).await),
                        "three" => Writer::Three(factory.create_index_writer(stream).await),
                        _ => Writer::Small(factory.create_index_writer(stream).await),
                    });
                    "ok".to_string()
                }
                "append" => append(&mut writer, &numbers(words[1]), &numbers(words[2]), bytes(words[3])).await,
                "flush" => told(with_writer!(writer, found => found.flush().await).map(|_| "")),
                "truncate" => {
                    let offset = words[1].parse().expect("an offset");
                    told(with_writer!(writer, found => found.truncate(offset).await).map(|_| ""))
                }
                "reader" => {
                    reader = Some(factory.create_index_reader(ScopedStream::from(words[1])).await);
                    "ok".to_string()
                }
                "search" => told(opened().search_offset((name(words[1]), words[2].parse().expect("a value"))).await),
                "head" => told(opened().head_offset().await),
                "tail" => told(opened().tail_offset().await),
                "first" => told(opened().first_record_data().await.map(|data| hex(&data))),
                "last" => told(opened().last_record_data().await.map(|data| hex(&data))),
                "read" => {
                    let end = if words[2] == "-" { u64::MAX } else { words[2].parse().expect("an end") };
                    read(opened(), words[1].parse().expect("a start"), end, words[3].parse().expect("most")).await
                }
                other => format!("error no order {}", other),
            }
        });
        println!("{}", answer);
        stdout().flush().expect("standard output");
    }
}
