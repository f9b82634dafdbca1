// SPDX-License-Identifier: MIT OR Apache-2.0
//! What launchers leave in the environment of a rank: its number, how many there are, and which job it is.

use nix::errno::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::WireupError;
use super::message::MAX_RANKS;

/// A rank's place in a job, by the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankEnvironment {
    pub(crate) launcher: &'static str,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// What no other job of this user has at the same time.
    id: String,
}

impl RankEnvironment {
    /// The name at which the ranks of this job meet.
    pub(crate) fn name(&self) -> String {
        let uid = nix::unistd::getuid();
        let text = format!("{}\0{}\0{}\0{uid}", self.launcher, self.id, self.size);
        format!("onecopy-{:032x}", xxh3_128(text.as_bytes()))
    }
}

const OPEN_MPI: &str = "Open MPI's mpirun";
const SLURM: &str = "Slurm's srun";
const PMIX: &str = "a launcher that speaks PMIx";
/// Steps of a Slurm job from this number on are no parallel steps: batch scripts, interactive shells. From Slurm's
/// slurm.h (`SLURM_MAX_NORMAL_STEP_ID`).
const SLURM_SPECIAL_STEPS: u32 = 0xffff_fff0;

/// What a variable of the environment says, if it is set.
pub(super) fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.to_string_lossy().into_owned())
}

/// Parses a number of ranks; the error completes "NAME=value is …".
pub(super) fn ranks(text: &str) -> Result<u32, String> {
    match text.parse::<u64>() {
        Ok(number) if number > MAX_RANKS.into() => Err(too_many()),
        _ => number(text, MAX_RANKS),
    }
}

/// Parses a rank; the error completes "NAME=value is …".
pub(super) fn rank(text: &str) -> Result<u32, String> {
    number(text, MAX_RANKS - 1)
}

/// Parses a number of nodes: no job has more of them than ranks. The error completes "NAME=value is …".
fn nodes(text: &str) -> Result<u32, String> {
    number(text, MAX_RANKS)
}

/// What a number of ranks is that no job can have.
pub(super) fn too_many() -> String {
    format!("beyond the limit of {MAX_RANKS} ranks in a job")
}

/// Parses a number; the error completes "NAME=value is …".
pub(super) fn number(text: &str, limit: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| number <= limit);
    number.ok_or_else(|| format!("not a number up to {limit}"))
}

/// Why a launcher's descriptor cannot be taken, if that is because it was taken before.
pub(super) fn taken_before(source: &std::io::Error) -> Option<String> {
    let before = source.raw_os_error() == Some(Errno::EALREADY as i32);
    before.then(|| "this process has joined its job before, and can do so once".to_owned())
}

/// The job that the environment describes; none if it describes none, an error if it does so in part.
pub(super) fn find() -> Result<Option<RankEnvironment>, WireupError> {
    find_in(&variable)
}

pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(crate) fn find_in(get: Variables<'_>) -> Result<Option<RankEnvironment>, WireupError> {
    if get("OMPI_COMM_WORLD_RANK").is_some() {
        return open_mpi(get).map(Some);
    }
    let step = get("SLURM_STEP_ID").or_else(|| get("SLURM_STEPID"));
    let parallel = step
        .and_then(|text| text.parse::<u32>().ok())
        .is_some_and(|step| step < SLURM_SPECIAL_STEPS);
    if parallel && get("SLURM_PROCID").is_some() {
        return slurm(get).map(Some);
    }
    if get("PMIX_RANK").is_some() {
        return Err(WireupError::Foreign {
            call: "join",
            launcher: PMIX.to_owned(),
            reason: "it says which rank this is (PMIX_RANK), but not how many there are; use mpirun, srun or mpiexec instead, or `onecopy run`. To run alone, unset PMIX_RANK".to_owned(),
        });
    }
    Ok(None)
}

fn open_mpi(get: Variables<'_>) -> Result<RankEnvironment, WireupError> {
    let needed = |name, parse| needed(get, OPEN_MPI, name, parse);
    // The size comes first: in a job that is too large, the rank may be, too.
    let size = needed("OMPI_COMM_WORLD_SIZE", ranks)?;
    let rank = needed("OMPI_COMM_WORLD_RANK", rank)?;
    let here = needed("OMPI_COMM_WORLD_LOCAL_SIZE", ranks)?;
    let id = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]
        .into_iter()
        .find_map(get);
    let id = id.ok_or_else(|| lacking(OPEN_MPI, "PMIX_NAMESPACE"))?;
    RankEnvironment {
        launcher: OPEN_MPI,
        rank,
        size,
        id,
    }
    .on_one_node(here)
}

fn slurm(get: Variables<'_>) -> Result<RankEnvironment, WireupError> {
    let total = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
    let name = total
        .into_iter()
        .find(|name| get(name).is_some())
        .unwrap_or(total[0]);
    let size = needed(get, SLURM, name, ranks)?;
    let rank = needed(get, SLURM, "SLURM_PROCID", rank)?;
    let text = |name| get(name).ok_or_else(|| lacking(SLURM, name));
    let id = format!("{}.{}", text("SLURM_JOB_ID")?, text("SLURM_STEP_ID")?);
    let nodes = match get("SLURM_STEP_NUM_NODES") {
        Some(_) => needed(get, SLURM, "SLURM_STEP_NUM_NODES", nodes)?,
        None => 1,
    };
    let here = if nodes == 1 { size } else { 0 };
    RankEnvironment {
        launcher: SLURM,
        rank,
        size,
        id,
    }
    .on_one_node(here)
}

impl RankEnvironment {
    fn on_one_node(self, here: usize) -> Result<Self, WireupError> {
        let Self { rank, size, .. } = self;
        let failed = |reason: String| {
            Err(WireupError::Foreign {
                call: "join",
                launcher: self.launcher.to_owned(),
                reason,
            })
        };
        if here != size {
            return failed(
                "the ranks run on several nodes, and its environment offers no table by which they could find one another. Use mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2. For mpirun and srun --mpi=pmix install libpmix".to_owned(),
            );
        }
        if rank >= size {
            return failed(format!(
                "rank {rank} is not below the number of ranks, {size}"
            ));
        }
        Ok(self)
    }
}

fn lacking(launcher: &str, name: &str) -> WireupError {
    WireupError::Foreign {
        call: "join",
        launcher: launcher.to_owned(),
        reason: format!("{name} is not set, although other variables of it are"),
    }
}

fn needed(
    get: Variables<'_>,
    launcher: &'static str,
    name: &'static str,
    parse: fn(&str) -> Result<u32, String>,
) -> Result<usize, WireupError> {
    let text = get(name).ok_or_else(|| lacking(launcher, name))?;
    let number = parse(&text).map_err(|what| WireupError::Foreign {
        call: "join",
        launcher: launcher.to_owned(),
        reason: format!("{name}={text:?} is {what}"),
    })?;
    Ok(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Result<Option<RankEnvironment>, String> {
        let get = |name: &str| {
            let pair = pairs.iter().find(|(known, _)| *known == name);
            pair.map(|(_, value)| (*value).to_owned())
        };
        find_in(&get).map_err(|error| error.to_string())
    }

    const MPIRUN: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-node-17@1"),
    ];
    const SRUN: [(&str, &str); 5] = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "9"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn each_launcher_is_known_by_its_traces() {
        assert_eq!(found(&[]), Ok(None));
        let job = found(&MPIRUN).expect("good").expect("some");
        assert_eq!((job.launcher, job.rank, job.size), (OPEN_MPI, 1, 2));
        let other = RankEnvironment {
            id: "prterun-node-17@2".to_owned(),
            ..job.clone()
        };
        assert_ne!(job.name(), other.name());
        let job = found(&SRUN).expect("good").expect("some");
        assert_eq!((job.launcher, job.rank, job.size), (SLURM, 0, 3));
        // srun --mpi=pmix sets both; the step counts.
        let both = [&SRUN[..], &[("PMIX_RANK", "0")]].concat();
        assert_eq!(found(&both).expect("good"), Some(job));
    }

    #[test]
    fn a_batch_script_is_no_parallel_step() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(found(&batch), Ok(None));
        let special = [&batch[..], &[("SLURM_STEP_ID", "4294967291")]].concat();
        assert_eq!(found(&special), Ok(None));
    }

    #[test]
    fn half_a_description_is_an_error_that_names_what_lacks() {
        for (lacks, pairs) in [
            ("PMIX_NAMESPACE", &MPIRUN[..3]),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", &[MPIRUN[0], MPIRUN[1]][..]),
            (
                "several nodes",
                &[&[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")], &MPIRUN[..]].concat()[..],
            ),
            (
                "several nodes",
                &[&SRUN[..], &[("SLURM_STEP_NUM_NODES", "2")]].concat()[..],
            ),
            (
                "not a number",
                &[&[("OMPI_COMM_WORLD_SIZE", "many")], &MPIRUN[..]].concat()[..],
            ),
            (
                "OMPI_COMM_WORLD_SIZE=\"30000\" is beyond the limit of 24576 ranks in a job",
                &[
                    &[
                        ("OMPI_COMM_WORLD_SIZE", "30000"),
                        ("OMPI_COMM_WORLD_RANK", "29999"),
                    ],
                    &MPIRUN[..],
                ]
                .concat()[..],
            ),
            (
                "OMPI_COMM_WORLD_RANK=\"24576\" is not a number up to 24575",
                &[&[("OMPI_COMM_WORLD_RANK", "24576")], &MPIRUN[..]].concat()[..],
            ),
            (
                "SLURM_STEP_NUM_NODES=\"30000\" is not a number up to 24576",
                &[&SRUN[..], &[("SLURM_STEP_NUM_NODES", "30000")]].concat()[..],
            ),
            (
                "not below",
                &[&[("OMPI_COMM_WORLD_RANK", "2")], &MPIRUN[..]].concat()[..],
            ),
            ("how many there are", &[("PMIX_RANK", "0")][..]),
        ] {
            let error = found(pairs).expect_err(lacks);
            assert!(error.contains(lacks), "{error}");
        }
    }
}
