// The movement of data between the members of a collective.
#pragma once

namespace shardproof::sim {

enum class Motion {
  kAllReduce,      // out[i].part(k) = reduce over j of in[j].part(k)
  kAllGather,      // out[i].part(j) = in[j].part(0)
  kReduceScatter,  // out[i].part(0) = reduce over j of in[j].part(i)
  kAllToAll,       // out[i].part(j) = in[j].part(i)
  kBroadcast,      // out[i].part(k) = in[root].part(k)
  kGather,         // out[root].part(j) = in[j].part(0)
  kScatter,        // out[i].part(0) = in[root].part(i)
  kMessage,        // out[1].part(0) = in[0].part(0)
  kBarrier,
};

}  // namespace shardproof::sim
