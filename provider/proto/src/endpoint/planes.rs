//! Planes as the host and its programs see them: which own addresses can be used, and what a program wants of the planes of
//! a connection. The work is the connection's (`conn/planes.rs`).

use crate::endpoint::Endpoint;
use crate::endpoint::table::ConnectionIndex;
use crate::telemetry::ConnectionInfo;
use crate::types::{LocalSet, QpId, Time};

/// Why a plane could not be switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerError {
    /// The queue pair has no open connection.
    NotConnected,
    /// The connection has no plane of that number.
    UnknownPlane,
    /// No other plane is left.
    LastPlane,
}

impl Endpoint {
    /// From now on packets can leave from the addresses `usable` only: paths leave the others' planes, and come back to those
    /// that can be used again (WIRE 4.31).
    pub fn set_usable(&mut self, now: Time, usable: LocalSet) {
        if std::mem::replace(&mut self.shared.usable, usable) == usable {
            return;
        }
        let indices: Vec<ConnectionIndex> = self.connections.indices().collect();
        for index in indices {
            self.on_connection(now, index, |connection, cx| connection.usable_changed(cx));
        }
    }

    /// The interfaces of the addresses `blocked` have no room at the moment: new data takes other planes.
    pub fn set_blocked(&mut self, now: Time, blocked: LocalSet) {
        self.shared.blocked = blocked;
        let mut held_back = std::mem::take(&mut self.held_back);
        held_back.sort_unstable();
        held_back.dedup();
        for index in held_back.drain(..) {
            self.after(now, index);
        }
        self.held_back = held_back;
    }

    /// Switches a plane on or off for what the connection of a queue pair sends, acknowledgements excepted.
    ///
    /// # Errors
    /// See [`SteerError`]; nothing changed.
    pub fn steer(
        &mut self,
        now: Time,
        qp: QpId,
        plane: u8,
        enabled: bool,
    ) -> Result<(), SteerError> {
        let index = self.open_connection_of(qp);
        let index = index.ok_or(SteerError::NotConnected)?;
        let steered = self.on_connection(now, index, |connection, cx| {
            connection.steer(cx, plane, enabled)
        });
        steered.unwrap_or(Err(SteerError::NotConnected))
    }

    /// The open connection of a queue pair; `None` while there is none.
    pub fn connection_of(&mut self, qp: QpId) -> Option<ConnectionInfo> {
        let index = self.open_connection_of(qp)?;
        let connection = self.connections.get(index)?;
        Some(connection.info(&self.shared))
    }

    fn open_connection_of(&mut self, qp: QpId) -> Option<ConnectionIndex> {
        let index = self.qps.life_mut(qp)?.connection?;
        let connection = self.connections.get(index)?;
        connection.is_open().then_some(index)
    }
}
