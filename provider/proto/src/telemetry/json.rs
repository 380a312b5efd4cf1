//! A writer of JSON, for telemetry: one object or array after the other into a string. The plugin is loaded into
//! other people's programs, and its JSON is flat and its own, so forty lines do what a general serializer would: the
//! tools that *read* JSON use one.

use std::fmt::{Display, Write};

/// Writes one object (or array, see `Json::list`) into a string; it is closed when the writer is dropped.
#[derive(Debug)]
pub struct Json<'a> {
    out: &'a mut String,
    close: char,
    first: bool,
}

impl<'a> Json<'a> {
    /// Begins an object.
    pub fn object(out: &'a mut String) -> Self {
        out.push('{');
        Self {
            out,
            close: '}',
            first: true,
        }
    }

    fn list(out: &'a mut String) -> Self {
        out.push('[');
        Self {
            out,
            close: ']',
            first: true,
        }
    }

    fn comma(&mut self) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(',');
        }
    }

    fn key(&mut self, name: &str) {
        self.comma();
        push_string(self.out, name);
        self.out.push(':');
    }

    /// A number.
    pub fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.key(name);
        let _ = write!(self.out, "{value}");
        self
    }

    /// A number, or `null`.
    pub fn number_if_any(&mut self, name: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.number(name, value),
            None => self.fraction(name, f64::NAN),
        }
    }

    /// A number with a fraction; `null` where it is none.
    pub fn fraction(&mut self, name: &str, value: f64) -> &mut Self {
        self.key(name);
        let _ = if value.is_finite() {
            write!(self.out, "{value}")
        } else {
            write!(self.out, "null")
        };
        self
    }

    /// True or false.
    pub fn truth(&mut self, name: &str, value: bool) -> &mut Self {
        self.key(name);
        let _ = write!(self.out, "{value}");
        self
    }

    /// A string: whatever the value displays.
    pub fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.key(name);
        push_string(self.out, &value.to_string());
        self
    }

    /// Numbers under their names.
    pub fn numbers(&mut self, numbers: impl Iterator<Item = (&'static str, u64)>) -> &mut Self {
        for (name, value) in numbers {
            self.number(name, value);
        }
        self
    }

    /// An object of its own under a name.
    pub fn nested(&mut self, name: &str) -> Json<'_> {
        self.key(name);
        Json::object(self.out)
    }

    /// An array of objects under a name; each is written by `write`.
    pub fn objects<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Json<'_>, T),
    ) -> &mut Self {
        self.key(name);
        let mut list = Json::list(self.out);
        for item in items {
            list.comma();
            write(&mut Json::object(list.out), item);
        }
        drop(list);
        self
    }
}

impl Drop for Json<'_> {
    fn drop(&mut self) {
        self.out.push(self.close);
    }
}

fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_lists_and_strings_are_closed_and_escaped() {
        let mut out = String::new();
        {
            let mut json = Json::object(&mut out);
            json.number("n", 7)
                .fraction("f", 0.5)
                .fraction("x", f64::NAN);
            json.text("s", "a\"b\\c\nd").truth("t", true);
            json.nested("o").number("a", 1).number("b", 2);
            json.objects("l", [1, 2], |json, value| {
                json.number("v", value);
            });
            json.objects("e", [0; 0], |_, _: u8| ());
        }
        assert_eq!(
            out,
            r#"{"n":7,"f":0.5,"x":null,"s":"a\"b\\c\u000ad","t":true,"o":{"a":1,"b":2},"l":[{"v":1},{"v":2}],"e":[]}"#
        );
    }
}
