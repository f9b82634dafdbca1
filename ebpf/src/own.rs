//! Stub.
/// Stub.
#[derive(Debug, Default)]
pub struct Collector {
    /// Refused.
    pub refused: Vec<String>,
}
impl Collector {
    /// New.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Observe.
    /// # Errors
    /// None.
    pub fn observe(&mut self) -> std::io::Result<crate::Observed> {
        Ok(crate::Observed::default())
    }
}
