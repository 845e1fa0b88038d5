"""The keys of slurm.conf by release. Slurm does not start with one that it does not know, and no client of it runs.

Measured with 22.05.8, 24.11.5 and 26.05.5 as Debian builds them: every word of libslurmfull.so was tried as a key, each
in a file of its own, with ``scontrol show hostnames``. Keys of which it says that they have been removed are left out.
"""

from __future__ import annotations

from difflib import get_close_matches

_EVERYWHERE = """
    AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost
    AccountingStorageParameters AccountingStoragePass AccountingStoragePort AccountingStorageTRES
    AccountingStorageType AccountingStorageUser AccountingStoreFlags AcctGatherEnergyType AcctGatherFilesystemType
    AcctGatherInfinibandType AcctGatherInterconnectType AcctGatherNodeFreq AcctGatherProfileType
    AllowSpecResourcesUsage AuthAltParameters AuthAltTypes AuthInfo AuthType BackupAddr BackupController
    BatchStartTimeout BcastExclude BcastParameters BurstBufferParameters BurstBufferType CliFilterPlugins
    ClusterName CommunicationParameters CompleteWait ControlAddr ControlMachine CoreSpecPlugin CpuFreqDef
    CpuFreqGovernors CredType CryptoType DebugFlags DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode
    DependencyParameters DisableRootJobs DownNodes EioTimeout EnforcePartLimits Epilog EpilogMsgTime EpilogSlurmctld
    ExtSensorsFreq ExtSensorsType FairShareDampeningFactor FastSchedule FederationParameters FirstJobId
    GetEnvTimeout GpuFreqDef GresTypes GroupUpdateForce GroupUpdateTime HealthCheckInterval HealthCheckNodeState
    HealthCheckProgram InactiveLimit InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams
    JobAcctGatherType JobCompHost JobCompLoc JobCompParams JobCompPass JobCompPort JobCompType JobCompUser
    JobContainerType JobCredentialPrivateKey JobCredentialPublicCertificate JobFileAppend JobRequeue
    JobSubmitPlugins KeepAliveTime KillOnBadExit KillWait LaunchParameters LaunchType Licenses LogTimeFormat
    MailDomain MailProg MaxArraySize MaxDBDMsgs MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode MaxNodeCount
    MaxStepCount MaxTasksPerNode MCSParameters MCSPlugin MessageTimeout MinJobAge MpiDefault MpiParams
    NodeFeaturesPlugins NodeName NodeSet OverTimeLimit PartitionName PluginDir PlugStackConfig PowerParameters
    PowerPlugin PreemptExemptTime PreemptMode PreemptType PrEpParameters PrEpPlugins PriorityCalcPeriod
    PriorityDecayHalfLife PriorityFavorSmall PriorityFlags PriorityMaxAge PriorityParameters
    PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightAge
    PriorityWeightAssoc PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS
    PriorityWeightTRES PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags PrologSlurmctld
    PropagatePrioProcess PropagateResourceLimits PropagateResourceLimitsExcept RebootProgram ReconfigFlags
    RequeueExit RequeueExitHold ResumeFailProgram ResumeProgram ResumeRate ResumeTimeout ResvEpilog ResvOverRun
    ResvProlog ReturnToService RoutePlugin SbcastParameters SchedulerParameters SchedulerTimeSlice SchedulerType
    ScronParameters SelectType SelectTypeParameters SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldLogFile
    SlurmctldParameters SlurmctldPidFile SlurmctldPort SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg
    SlurmctldSyslogDebug SlurmctldTimeout SlurmdDebug SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort
    SlurmdSpoolDir SlurmdSyslogDebug SlurmdTimeout SlurmdUser SlurmSchedLogFile SlurmSchedLogLevel SlurmUser
    SrunEpilog SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes SuspendExcParts SuspendProgram SuspendRate
    SuspendTime SuspendTimeout SwitchParameters SwitchType TaskEpilog TaskPlugin TaskPluginParam TaskProlog
    TCPTimeout TmpFS TopologyParam TopologyPlugin TrackWCKey TreeWidth UnkillableStepProgram UnkillableStepTimeout
    UsePAM VSizeFactor WaitTime X11Parameters
"""
_IN_SOME = {  # releases -> keys
    "22.05": """
        SchedulerAuth SlurmctldPlugstack
    """,
    "22.05 24.11": """
        FrontendName
    """,
    "24.11 26.05": """
        CertmgrParameters CertmgrType DataParserParameters HashPlugin MaxBatchRequeue PreemptParameters
        SuspendExcStates TLSParameters TLSType
    """,
    "26.05": """
        CertgenParameters CertgenType CliFilterParameters EpilogTimeout HealthCheckTimeout HttpParserType
        JobCompPassScript LicenseParameters MetricsAuthUsers MetricsParameters MetricsType NamespaceType
        PowerAction PrologTimeout SlurmctldHttpAuthParameters SlurmdHttpAuthParameters UrlParserType
    """,
}


def keys_of(version: str) -> dict[str, str]:
    """Small letters -> the key as Slurm spells it; empty for a release that nobody has measured."""
    if not any(version in versions.split() for versions in _IN_SOME):
        return {}
    words = _EVERYWHERE.split()
    for versions, some in _IN_SOME.items():
        words += some.split() if version in versions.split() else []
    return {word.lower(): word for word in words}


def unknown_key(key: str, version: str) -> str:
    """Why ``key`` cannot stand in slurm.conf of that release, in one sentence; "" when it can."""
    known = keys_of(version)
    if not known or key.lower() in known:
        return ""
    text = f"config.slurm.{key}: Slurm {version} has no such key and would not start"
    others = [v for versions, some in _IN_SOME.items() if key.lower() in some.lower().split() for v in versions.split()]
    if others:
        return f"{text}; Slurm {' and '.join(others)} {'have' if len(others) > 1 else 'has'} it"
    near = get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    return f"{text}; did you mean {known[near[0]]}?" if near else f"{text}; remove it"
