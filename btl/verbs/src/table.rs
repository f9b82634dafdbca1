// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table whose entries have names with a generation: an old name finds nothing.

/// Values by name.
#[derive(Debug)]
pub struct Table<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    count: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }
}

impl<T> Table<T> {
    /// Puts a value in; its name. None when there are as many as a name can distinguish.
    pub fn insert(&mut self, value: T) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(Entry {
                    generation: 0,
                    value: None,
                });
                index
            }
        };
        let entry = self.entries.get_mut(index as usize)?;
        entry.value = Some(value);
        self.count += 1;
        Some(u64::from(entry.generation) << 32 | u64::from(index))
    }

    fn entry(&mut self, name: u64) -> Option<&mut Entry<T>> {
        let index = usize::try_from(name & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get_mut(index)?;
        (u64::from(entry.generation) == name >> 32).then_some(entry)
    }

    /// The value of that name, to look at.
    #[must_use]
    pub fn get(&self, name: u64) -> Option<&T> {
        let index = usize::try_from(name & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get(index)?;
        let same = u64::from(entry.generation) == name >> 32;
        entry.value.as_ref().filter(|_| same)
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// The names of all values.
    #[must_use]
    pub fn names(&self) -> Vec<u64> {
        let entries = self.entries.iter().enumerate();
        let named = entries.filter(|(_, entry)| entry.value.is_some());
        named
            .map(|(index, entry)| u64::from(entry.generation) << 32 | index as u64)
            .collect()
    }

    /// The value of that name.
    pub fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        self.entry(name)?.value.as_mut()
    }

    /// Takes a value out; its name will find nothing.
    pub fn remove(&mut self, name: u64) -> Option<T> {
        let entry = self.entry(name)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push((name & u64::from(u32::MAX)) as u32);
        self.count -= 1;
        Some(value)
    }

    /// Takes out all values that are wanted.
    pub fn remove_if(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut names = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.value.as_ref().is_some_and(&mut wanted) {
                names.push(u64::from(entry.generation) << 32 | index as u64);
            }
        }
        names
            .into_iter()
            .filter_map(|name| self.remove(name))
            .collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_finds_nothing() {
        let mut table = Table::default();
        let a = table.insert('a').expect("room");
        let b = table.insert('b').expect("room");
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert('c').expect("room");
        assert_ne!(a, c);
        assert_eq!(table.get_mut(a), None);
        assert_eq!(table.get_mut(c), Some(&mut 'c'));
        assert_eq!(table.remove_if(|value| *value == 'b'), ['b']);
        assert_eq!(table.get_mut(b), None);
        assert_eq!(table.len(), 1);
        assert_eq!(table.get_mut(u64::MAX), None);
    }
}
