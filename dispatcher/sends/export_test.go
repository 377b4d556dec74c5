package sends

// The statements whose plans are looked at.
const (
	LockSQL  = lockSQL
	ClaimSQL = claimSQL
	OursSQL  = oursSQL
	StepSQL  = stepSQL
	ParkSQL  = parkSQL
)
