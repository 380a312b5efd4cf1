//! Which part of a fabric an impairment is for: one plane or all, one direction or all.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

use super::host::Host;
use super::shape::Shape;
use super::topology::{Port, far_end, near_end};

/// A direction of the traffic on a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Both, or with more than two hosts: to all of them.
    #[default]
    Both,
    /// What arrives at a host.
    To(Host),
    /// What a host sends.
    From(Host),
    /// Written `ab`: from the first to the second, in a fabric of these two hosts.
    Pair(Host, Host),
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both => formatter.write_str("both"),
            Self::To(host) => write!(formatter, "to-{host}"),
            Self::From(host) => write!(formatter, "from-{host}"),
            Self::Pair(from, to) => write!(formatter, "{from}{to}"),
        }
    }
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("`{text}` is no direction: both, ab, ba, to-a, from-b …");
        let host = |text: &str| text.parse::<Host>();
        if text == "both" {
            return Ok(Self::Both);
        }
        if let Some(letter) = text.strip_prefix("to-") {
            return host(letter).map(Self::To).map_err(wrong);
        }
        if let Some(letter) = text.strip_prefix("from-") {
            return host(letter).map(Self::From).map_err(wrong);
        }
        match text.char_indices().nth(1) {
            Some((at, _)) => {
                let (from, to) = text.split_at(at);
                let pair = Self::Pair(host(from).map_err(wrong)?, host(to).map_err(wrong)?);
                if from == to {
                    Err(wrong(String::new()))
                } else {
                    Ok(pair)
                }
            }
            None => Err(wrong(String::new())),
        }
    }
}

impl Direction {
    /// The same said by its receiver, and checked against the hosts that there are.
    fn resolve(self, shape: Shape) -> Result<Self> {
        let check = |host| check_host(shape, host);
        match self {
            Self::Both => {}
            Self::To(host) | Self::From(host) => check(host)?,
            Self::Pair(from, to) => {
                check(from)?;
                check(to)?;
                if shape.hosts != 2 {
                    bail!(
                        "`{self}` names one of two directions, and this fabric has {} hosts: write \
                         from-{from} or to-{to}",
                        shape.hosts
                    );
                }
                return Ok(Self::To(to));
            }
        }
        Ok(self)
    }
}

/// One plane of a fabric or all, in one direction or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Number of the plane, from 1; none for all.
    pub plane: Option<u8>,
    /// The direction.
    pub direction: Direction,
}

impl Place {
    /// Every plane, both directions.
    pub const ALL: Self = Self {
        plane: None,
        direction: Direction::Both,
    };

    /// One plane (from 1), both directions.
    pub fn plane(plane: u8) -> Self {
        Self {
            plane: Some(plane),
            direction: Direction::Both,
        }
    }

    /// Every plane, one direction.
    pub fn direction(direction: Direction) -> Self {
        Self {
            plane: None,
            direction,
        }
    }

    /// This plane, in one direction.
    #[must_use]
    pub fn towards(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    fn planes(self, shape: Shape) -> Result<std::ops::RangeInclusive<u8>> {
        match self.plane {
            None => Ok(1..=shape.planes()),
            Some(plane) => check_plane(shape, plane).map(|()| plane..=plane),
        }
    }

    /// The ports where its traffic comes in: single packets are judged there. A packet is judged once: with
    /// more than two hosts `Both` is what the hosts receive.
    pub(super) fn filters(self, name: &str, shape: Shape) -> Result<Vec<Port>> {
        let direction = self.direction.resolve(shape)?;
        let mut ports = Vec::new();
        for plane in self.planes(shape)? {
            match direction {
                Direction::From(host) => ports.push(far_end(name, shape, host, plane)),
                Direction::To(host) => ports.push(near_end(name, shape, host, plane)),
                Direction::Both | Direction::Pair(..) => {
                    ports.extend(shape.hosts().map(|host| near_end(name, shape, host, plane)))
                }
            }
        }
        Ok(ports)
    }

    /// The ports where its traffic leaves: speed is limited there. `Both` is every port of every cable.
    pub(super) fn queues(self, name: &str, shape: Shape) -> Result<Vec<Port>> {
        let direction = self.direction.resolve(shape)?;
        let mut ports: Vec<Port> = Vec::new();
        for plane in self.planes(shape)? {
            let hosts: Vec<Host> = match direction {
                Direction::From(host) | Direction::To(host) => vec![host],
                Direction::Both | Direction::Pair(..) => shape.hosts().collect(),
            };
            for host in hosts {
                let (near, far) = (
                    near_end(name, shape, host, plane),
                    far_end(name, shape, host, plane),
                );
                let wanted = match direction {
                    Direction::From(_) => vec![near],
                    Direction::To(_) => vec![far],
                    Direction::Both | Direction::Pair(..) => vec![near, far],
                };
                let new: Vec<Port> = wanted
                    .into_iter()
                    .filter(|port| !ports.contains(port))
                    .collect();
                ports.extend(new);
            }
        }
        Ok(ports)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plane {
            Some(plane) => write!(formatter, "{plane}")?,
            None => formatter.write_str("all")?,
        }
        match self.direction {
            Direction::Both => Ok(()),
            direction => write!(formatter, ":{direction}"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    /// Reads `PLANE` or `PLANE:DIRECTION`, such as `2`, `2:ab`, `all:to-c`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (plane, direction) = text.split_once(':').unwrap_or((text, "both"));
        let plane = match plane {
            "all" => None,
            number => Some(number.parse::<u8>().map_err(|_| {
                format!("`{text}` is no plane: write 2, 2:ab, 2:to-b, 2:from-b or all")
            })?),
        };
        Ok(Self {
            plane,
            direction: direction.parse()?,
        })
    }
}

/// Refuses a host that is not there.
pub(super) fn check_host(shape: Shape, host: Host) -> Result<()> {
    let last = shape.hosts().last().unwrap_or(Host::B);
    ensure!(
        host <= last,
        "there is no host {host}: this fabric has the hosts a to {last}"
    );
    Ok(())
}

/// Refuses a plane that is not there.
pub(super) fn check_plane(shape: Shape, plane: u8) -> Result<()> {
    let planes = shape.planes();
    ensure!(
        (1..=planes).contains(&plane),
        "there is no plane {plane}: this fabric ({shape}) has {}",
        match planes {
            1 => "plane 1 only".to_owned(),
            _ => format!("planes 1 to {planes}"),
        }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::shape::Topology;
    use super::*;

    #[test]
    fn directions_are_read_as_they_are_printed() {
        for text in ["both", "ab", "ba", "to-c", "from-p"] {
            assert_eq!(text.parse::<Direction>().unwrap().to_string(), text);
        }
        for text in ["", "a", "aa", "abc", "to-", "from-ab", "ä", "aä", "to-z"] {
            assert!(text.parse::<Direction>().is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_read_as_they_are_printed() {
        for text in ["all", "2", "2:ab", "all:to-c", "8:from-b"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "x", "2:", "2:x", "-1", "300", "2:ab:ba", "1,2"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_direction_of_two_hosts_has_three_names() {
        let shape: Shape = Topology::Planes(2).into();
        let filters = |text: &str| {
            Place::direction(text.parse().unwrap())
                .filters("x", shape)
                .unwrap()
        };
        assert_eq!(filters("ab"), filters("to-b"));
        assert_eq!(filters("ab"), filters("from-a"));
        assert_ne!(filters("ab"), filters("ba"));
        assert_eq!(filters("both").len(), 4);
        let all = Place::ALL.queues("x", shape).unwrap();
        assert_eq!(all.len(), 4, "{all:?}");
    }

    #[test]
    fn more_hosts_are_named_by_their_cables() {
        let shape = Topology::Nics(2).with_hosts(3);
        let place = |text: &str| Place::plane(2).towards(text.parse().unwrap());
        assert!(place("ab").filters("x", shape).is_err());
        assert!(place("to-d").filters("x", shape).is_err());
        assert!(Place::plane(3).filters("x", shape).is_err());
        assert_eq!(
            place("to-c").filters("x", shape).unwrap()[0].namespace,
            "x-c"
        );
        assert_eq!(place("from-c").filters("x", shape).unwrap()[0].device, "c2");
        assert_eq!(place("both").filters("x", shape).unwrap().len(), 3);
        assert_eq!(place("both").queues("x", shape).unwrap().len(), 6);
    }
}
