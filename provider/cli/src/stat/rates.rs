//! Rates: what counters grew by a second. A counter is whatever is named as one of the engine's counters; a path's have
//! the same names.

use serde_json::{Map, Value, json};

/// Adds `per_second` to the engine and to each of its paths that was there `seconds` before.
pub(super) fn add(now: &mut Value, before: &Value, seconds: f64) {
    if seconds <= 0.0 {
        return;
    }
    let names: Vec<String> = now["counters"]
        .as_object()
        .map(|counters| counters.keys().cloned().collect())
        .unwrap_or_default();
    let total = of(&now["counters"], &before["counters"], &names, seconds);
    now["per_second"] = total;
    for connection in now["connections"].as_array_mut().into_iter().flatten() {
        let Some(earlier) = with_same(&before["connections"], "id", &connection["id"]).cloned()
        else {
            continue;
        };
        for kind in ["paths", "receiving_paths"] {
            for path in connection[kind].as_array_mut().into_iter().flatten() {
                if let Some(earlier) = with_same(&earlier[kind], "path", &path["path"]) {
                    path["per_second"] = of(path, earlier, &names, seconds);
                }
            }
        }
    }
}

fn with_same<'a>(list: &'a Value, key: &str, value: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry[key] == *value)
}

fn of(now: &Value, before: &Value, names: &[String], seconds: f64) -> Value {
    let mut rates = Map::new();
    for name in names {
        if let (Some(now), Some(before)) = (now[name].as_u64(), before[name].as_u64()) {
            let grown = now.saturating_sub(before) as f64;
            rates.insert(name.clone(), json!((grown / seconds * 10.0).round() / 10.0));
        }
    }
    Value::Object(rates)
}
