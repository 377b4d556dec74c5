package sends

// The statements whose plans are looked at.
const (
	LockSQL  = lockSQL
	ClaimSQL = claimSQL
	OursSQL  = oursSQL
	StepSQL  = stepSQL
	ParkSQL  = parkSQL

	BlastOutcomeSQL = blastOutcomeSQL
	BlastMarkSQL    = blastMarkSQL
	BlastRestSQL    = blastRestSQL
	BlastLockSQL    = blastLockSQL
	RecordSQL       = recordSQL
	SettleSQL       = settleSQL

	WaitsSQL     = waitsSQL
	CreditsSQL   = creditsSQL
	WaitingSQL   = waitingSQL
	RecoverSQL   = recoverSQL
	DueSQL       = dueSQL
	UnparkSQL    = unparkSQL
	UnholdSQL    = unholdSQL
	ReconcileSQL = reconcileSQL
)
